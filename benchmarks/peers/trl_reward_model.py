"""Compute the loss of TRL's RewardTrainer on pairs of token sequences; print loss and gradient norm as JSON."""

import json
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast
from trl import RewardConfig, RewardTrainer

folder, question = sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
vocabulary = {f"t{number}": number for number in range(model.config.vocab_size)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t1")), pad_token="t0", eos_token="t2"
)
rows = [{"chosen_ids": chosen, "rejected_ids": rejected} for chosen, rejected in question["pairs"]]
with tempfile.TemporaryDirectory() as output:
    arguments = RewardConfig(
        output_dir=output,
        use_cpu=True,
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        center_rewards_coefficient=question["center"] or None,
    )
    trainer = RewardTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    inputs = trainer.data_collator(rows)
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1e9)
print(json.dumps({"loss": loss.item(), "grad_norm": norm.item()}))
