"""A Hugging Face Trainer that saves on SIGTERM and resumes: hf_resume.py STEPS FOLDER"""

import os
import sys
import time

import torch
from digest import digest
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

set_seed(1)
config = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
)
model = BertForSequenceClassification(config)
tokens = torch.randint(0, 64, (512, 8))
data = [{"input_ids": row, "labels": row.sum() % 2} for row in tokens]


class Slow(TrainerCallback):
    """Steps that take a while, so that there is something to stop."""

    def on_step_end(self, *_, **__):
        time.sleep(0.02)


folder = sys.argv[2]
arguments = TrainingArguments(
    folder,
    use_cpu=True,
    max_steps=int(sys.argv[1]),
    per_device_train_batch_size=4,
    report_to="none",
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    enable_jit_checkpoint=True,
)
last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
print("resumes", last is not None, flush=True)
Trainer(model, arguments, train_dataset=data, callbacks=[Slow()]).train(resume_from_checkpoint=last)
print("weights", digest(p.detach().numpy() for p in model.parameters()))
