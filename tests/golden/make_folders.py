#!/usr/bin/env python3
"""Small random models as transformers saves them, and what they compute: tests/golden/folders/NAME holds the folder (config.json, safetensors,
one of them in shards with an index) and golden.safetensors (loss, every gradient and twenty AdamW steps on one batch in float64, and the ids
that greedy search appends to a prompt), for tests/train/model_folder_test.cpp.

    scripts/reference-env.sh /tmp/reference && /tmp/reference/bin/python tests/golden/make_folders.py

Everything is computed by transformers' own classes.
"""
import pathlib
import shutil

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent / "folders"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def gradients(model, ids, targets):
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    return loss


def finetune(model, ids, targets):
    """Twenty steps of AdamW, clipped to norm 1; decay for matrices only."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1}, {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(20):
        losses.append(gradients(model, ids, targets).item())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return np.array(losses)


def make(name, config, dtype="fp32", shard="5GB"):
    torch.manual_seed(20261129)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.float32).eval()
    with torch.no_grad():  # random norms and biases too, and weights large enough to matter
        for parameter in model.parameters():
            parameter.copy_(parameter * 8 if parameter.dim() > 1 else parameter + 0.1 * torch.randn_like(parameter))
    model.to(DTYPES[dtype]).save_pretrained(folder, max_shard_size=shard)
    # Loaded again: a conversion would leave the rotary frequencies rounded to what the weights are stored in.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    vocabulary = config.vocab_size
    ids = torch.randint(0, vocabulary, (2, 14))
    targets = torch.randint(0, vocabulary, (2, 14))
    targets[1, :4] = -100
    out = {"ids": ids.int().numpy(), "targets": targets.int().numpy()}
    with torch.no_grad():
        out["logits"] = model(input_ids=ids[:1]).logits[0, -1].float().numpy()  # all 14 tokens; the text below has as many
        out["greedy"] = model.generate(ids[:1, :5], do_sample=False, max_new_tokens=9, eos_token_id=None, pad_token_id=0)[0].int().numpy()
    out["loss"] = np.array([gradients(model, ids, targets).item()])
    out.update({"d." + key: p.grad.float().numpy().copy() for key, p in model.named_parameters()})
    out["adamw.losses"] = finetune(model, ids, targets)
    save_file(out, folder / "golden.safetensors")


if __name__ == "__main__":
    base = dict(hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=37, max_position_embeddings=64,
                bos_token_id=1, eos_token_id=2)
    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
    make("llama3", transformers.LlamaConfig(**base, head_dim=8, rope_parameters=llama3, tie_word_embeddings=True), dtype="bf16")
    make("llama", transformers.LlamaConfig(**base, rms_norm_eps=1e-5, tie_word_embeddings=False), shard="12KB")
    make("mistral", transformers.MistralConfig(**base, head_dim=6, sliding_window=None), dtype="fp16")
    make("qwen2", transformers.Qwen2Config(**base, tie_word_embeddings=True), dtype="bf16")
    make("qwen3", transformers.Qwen3Config(**base, head_dim=10, tie_word_embeddings=False), dtype="bf16")
    make("gpt2", transformers.GPT2Config(n_embd=20, n_layer=2, n_head=2, n_positions=32, vocab_size=37, bos_token_id=1, eos_token_id=2,
                                         resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
