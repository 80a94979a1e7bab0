"""A Hugging Face Trainer with a tiny model of random weights: hf_trainer.py STEPS"""

import sys
import tempfile

import torch
from digest import digest
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(1)
config = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
)
model = BertForSequenceClassification(config)
tokens = torch.randint(0, 64, (512, 8))
data = [{"input_ids": row, "labels": row.sum() % 2} for row in tokens]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=int(sys.argv[1]),
        per_device_train_batch_size=4,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=data).train()
print("weights", digest(p.detach().numpy() for p in model.parameters()))
