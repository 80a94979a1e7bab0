"""A Hugging Face Trainer with a tiny model of random weights: hf_trainer.py STEPS [FOLDER]

With FOLDER it saves there on SIGTERM, goes on from there, and takes its time, so that there is something to stop.
"""

import os
import sys
import tempfile
import time

import torch
from digest import digest
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

set_seed(1)
# The Trainer may save between a step's forward pass and its update. The step is then done again, with other random
# numbers, so weights are the same only without dropout.
config = BertConfig(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    num_labels=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
tokens = torch.randint(0, 64, (512, 8))
data = [{"input_ids": row, "labels": row.sum() % 2} for row in tokens]


class Slow(TrainerCallback):
    def on_step_end(self, *_, **__):
        time.sleep(0.02)


may_stop = len(sys.argv) > 2
with tempfile.TemporaryDirectory() as scratch:
    folder = sys.argv[2] if may_stop else scratch
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=int(sys.argv[1]),
        per_device_train_batch_size=4,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **({"enable_jit_checkpoint": True} if may_stop else {}),
    )
    last = get_last_checkpoint(folder) if may_stop and os.path.isdir(folder) else None
    if may_stop:
        print("resumes", last is not None, flush=True)
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Slow()] if may_stop else [])
    trainer.train(resume_from_checkpoint=last)
print("weights", digest(p.detach().numpy() for p in model.parameters()))
