#!/usr/bin/env python3
"""Golden values for tests/layers and tests/model, by PyTorch in float64: each layer's output and gradients, and the loss, gradients and twenty
AdamW steps of a whole small model of each family: Llama (and Mistral), Qwen2, Qwen3, GPT-2. Weights and inputs are rounded to fp32 first, so both sides start from the same numbers.
Each model also runs in bf16 (weights, activations and products; norms, rotation, softmax and loss inside in float64), and the files keep how
far its loss and gradients are from float64: what bf16 costs whoever computes with care.

    scripts/reference-env.sh /tmp/reference && /tmp/reference/bin/python tests/golden/make_models.py

writes tests/golden/*.safetensors (committed; CI needs no PyTorch). Written from the definitions, not from baleen's code.
"""
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
torch.manual_seed(20261129)


def fp32(*shape, scale=1.0):
    """Random values that fp32 holds exactly, as float64."""
    return (torch.randn(*shape, dtype=torch.float64) * scale).float().double()


def inverse_frequencies(dim, theta, scaling):
    freq = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if scaling is None:
        return freq
    if scaling["type"] == "linear":
        return freq / scaling["factor"]
    out = []
    length = scaling["original_max_position_embeddings"]
    for f in freq.tolist():
        wavelength = 2 * math.pi / f
        if wavelength < length / scaling["high_freq_factor"]:
            out.append(f)
        elif wavelength > length / scaling["low_freq_factor"]:
            out.append(f / scaling["factor"])
        else:
            smooth = (length / wavelength - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
            out.append((1 - smooth) * f / scaling["factor"] + smooth * f)
    return torch.tensor(out, dtype=torch.float64)


def rope(x, theta, scaling):
    """x [B, heads, T, D]; the half-split layout of Hugging Face."""
    dim, length = x.shape[-1], x.shape[-2]
    angle = torch.outer(torch.arange(length, dtype=torch.float64), inverse_frequencies(dim, theta, scaling))
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def rms_norm(x, weight, eps):
    wide = x.double()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def linear(x, w, name):
    y = x @ w[name + ".weight"].T
    return y + w[name + ".bias"] if name + ".bias" in w else y


def causal(q, k, v):
    """q, k, v [B, H, T, D] to [B, T, H·D]."""
    B, H, T, D = q.shape
    dtype, q, k, v = q.dtype, q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    scores = scores.masked_fill(torch.triu(torch.ones(T, T, dtype=torch.bool), 1), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, H * D).to(dtype)


def attention(x, w, prefix, cfg):
    B, T, _ = x.shape
    H, KV, D = cfg["heads"], cfg["kv_heads"], cfg["head_dim"]
    q = linear(x, w, prefix + "q_proj").view(B, T, H, D).transpose(1, 2)
    k = linear(x, w, prefix + "k_proj").view(B, T, KV, D).transpose(1, 2)
    v = linear(x, w, prefix + "v_proj").view(B, T, KV, D).transpose(1, 2)
    if prefix + "q_norm.weight" in w:  # Qwen3: each head, before the rotation
        q, k = rms_norm(q, w[prefix + "q_norm.weight"], cfg["eps"]), rms_norm(k, w[prefix + "k_norm.weight"], cfg["eps"])
    q, k = rope(q, cfg["theta"], cfg["scaling"]), rope(k, cfg["theta"], cfg["scaling"])
    k, v = k.repeat_interleave(H // KV, dim=1), v.repeat_interleave(H // KV, dim=1)
    return linear(causal(q, k, v), w, prefix + "o_proj")


def mlp(x, w, prefix):
    gate, up = (x @ w[prefix + "gate_proj.weight"].T).double(), x @ w[prefix + "up_proj.weight"].T
    return (F.silu(gate) * up).to(x.dtype) @ w[prefix + "down_proj.weight"].T


def block(x, w, prefix, cfg):
    x = x + attention(rms_norm(x, w[prefix + "input_layernorm.weight"], cfg["eps"]), w, prefix + "self_attn.", cfg)
    return x + mlp(rms_norm(x, w[prefix + "post_attention_layernorm.weight"], cfg["eps"]), w, prefix + "mlp.")


def model_loss(w, cfg, ids, targets):
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(cfg["layers"]):
        x = block(x, w, f"model.layers.{layer}.", cfg)
    x = rms_norm(x, w["model.norm.weight"], cfg["eps"])
    return head_loss(x, w.get("lm_head.weight", w["model.embed_tokens.weight"]), targets)


def head_loss(x, head, targets):
    return F.cross_entropy((x @ head.T).flatten(0, 1).double(), targets.flatten(), ignore_index=-100, reduction="mean")


def layer_norm(x, w, name, eps):
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    return (centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * w[name + ".weight"] + w[name + ".bias"]).to(x.dtype)


def gelu_new(x):
    wide = x.double()
    return (0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))).to(x.dtype)


def gpt2_block(x, w, prefix, cfg):
    B, T, C = x.shape
    conv = lambda x, name: x @ w[prefix + name + ".weight"] + w[prefix + name + ".bias"]  # Conv1D: weights are [in, out]
    q, k, v = (part.view(B, T, cfg["heads"], -1).transpose(1, 2) for part in conv(layer_norm(x, w, prefix + "ln_1", cfg["eps"]), "attn.c_attn").split(C, -1))
    x = x + conv(causal(q, k, v), "attn.c_proj")
    return x + conv(gelu_new(conv(layer_norm(x, w, prefix + "ln_2", cfg["eps"]), "mlp.c_fc")), "mlp.c_proj")


def gpt2_loss(w, cfg, ids, targets):
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: ids.shape[1]]
    for layer in range(cfg["layers"]):
        x = gpt2_block(x, w, f"transformer.h.{layer}.", cfg)
    x = layer_norm(x, w, "transformer.ln_f", cfg["eps"])
    return head_loss(x, w.get("lm_head.weight", w["transformer.wte.weight"]), targets)


def make_gpt2_weights(cfg):
    C, V = cfg["hidden"], cfg["vocab"]
    w = {"transformer.wte.weight": fp32(V, C, scale=0.5), "transformer.wpe.weight": fp32(cfg["positions"], C, scale=0.3)}

    def norm(name):
        w[name + ".weight"], w[name + ".bias"] = 1 + fp32(C, scale=0.1), fp32(C, scale=0.1)

    def conv(name, inputs, outputs):
        w[name + ".weight"], w[name + ".bias"] = fp32(inputs, outputs, scale=0.3), fp32(outputs, scale=0.1)

    for layer in range(cfg["layers"]):
        p = f"transformer.h.{layer}."
        norm(p + "ln_1"), conv(p + "attn.c_attn", C, 3 * C), conv(p + "attn.c_proj", C, C)
        norm(p + "ln_2"), conv(p + "mlp.c_fc", C, cfg["inner"]), conv(p + "mlp.c_proj", cfg["inner"], C)
    norm("transformer.ln_f")
    if not cfg["tied"]:
        w["lm_head.weight"] = fp32(V, C, scale=0.3)
    return {name: tensor.float().double() for name, tensor in w.items()}


def make_weights(cfg):
    C, Fw, V = cfg["hidden"], cfg["intermediate"], cfg["vocab"]
    Q, KV = cfg["heads"] * cfg["head_dim"], cfg["kv_heads"] * cfg["head_dim"]
    w = {"model.embed_tokens.weight": fp32(V, C, scale=0.5)}
    for layer in range(cfg["layers"]):
        p = f"model.layers.{layer}."
        w[p + "input_layernorm.weight"] = 1 + fp32(C, scale=0.1)
        w[p + "self_attn.q_proj.weight"] = fp32(Q, C, scale=0.3)
        w[p + "self_attn.k_proj.weight"] = fp32(KV, C, scale=0.3)
        w[p + "self_attn.v_proj.weight"] = fp32(KV, C, scale=0.3)
        w[p + "self_attn.o_proj.weight"] = fp32(C, Q, scale=0.3)
        for part, rows in (("q_proj", Q), ("k_proj", KV), ("v_proj", KV), ("o_proj", C)):
            if part in cfg.get("biased", ()):
                w[p + f"self_attn.{part}.bias"] = fp32(rows, scale=0.2)
        if cfg.get("qk_norm"):
            w[p + "self_attn.q_norm.weight"] = 1 + fp32(cfg["head_dim"], scale=0.1)
            w[p + "self_attn.k_norm.weight"] = 1 + fp32(cfg["head_dim"], scale=0.1)
        w[p + "post_attention_layernorm.weight"] = 1 + fp32(C, scale=0.1)
        w[p + "mlp.gate_proj.weight"] = fp32(Fw, C, scale=0.3)
        w[p + "mlp.up_proj.weight"] = fp32(Fw, C, scale=0.3)
        w[p + "mlp.down_proj.weight"] = fp32(C, Fw, scale=0.3)
    w["model.norm.weight"] = 1 + fp32(C, scale=0.1)
    if not cfg["tied"]:
        w["lm_head.weight"] = fp32(V, C, scale=0.3)
    return {name: tensor.float().double() for name, tensor in w.items()}


def numpy32(tensor):
    return tensor.detach().to(torch.float32).contiguous().numpy()


def make_layers():
    """One block of odd sizes, each layer alone: output, and gradients of input and weights for a random output gradient."""
    cfg = dict(hidden=20, intermediate=36, layers=1, heads=6, kv_heads=2, head_dim=6, vocab=19, theta=500.0, scaling=None, eps=1e-5, tied=False)
    B, T = 2, 13
    w = make_weights(cfg)
    x, d_out = fp32(B, T, cfg["hidden"]), fp32(B, T, cfg["hidden"])
    out = {"weights." + name: numpy32(tensor) for name, tensor in w.items()}
    out["x"], out["d_out"] = numpy32(x), numpy32(d_out)
    prefix = "model.layers.0."
    layers = {
        "norm": lambda x, w: rms_norm(x, w[prefix + "input_layernorm.weight"], cfg["eps"]),
        "attention": lambda x, w: attention(x, w, prefix + "self_attn.", cfg),
        "mlp": lambda x, w: mlp(x, w, prefix + "mlp."),
        "block": lambda x, w: block(x, w, prefix, cfg),
    }
    for name, layer in layers.items():
        leaf = x.clone().requires_grad_()
        leaves = {key: tensor.clone().requires_grad_() for key, tensor in w.items()}
        y = layer(leaf, leaves)
        y.backward(d_out)
        out[name + ".y"], out[name + ".d_x"] = numpy32(y), numpy32(leaf.grad)
        for key, tensor in leaves.items():
            if tensor.grad is not None:
                out[f"{name}.d.{key}"] = numpy32(tensor.grad)
    # Embedding and head + loss.
    ids = torch.randint(0, cfg["vocab"], (B, T))
    targets = torch.randint(0, cfg["vocab"], (B, T))
    targets[0, :5] = -100
    out["ids"], out["targets"] = ids.to(torch.int32).numpy(), targets.to(torch.int32).numpy()
    table = w["model.embed_tokens.weight"].clone().requires_grad_()
    y = table[ids]
    y.backward(d_out)
    out["embedding.y"], out["embedding.d.model.embed_tokens.weight"] = numpy32(y), numpy32(table.grad)
    leaf, head = x.clone().requires_grad_(), w["lm_head.weight"].clone().requires_grad_()
    loss = F.cross_entropy((leaf @ head.T).flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="mean")
    loss.backward()
    out["head.loss"] = np.array([loss.item()], dtype=np.float64)
    out["head.d_x"], out["head.d.lm_head.weight"] = numpy32(leaf.grad), numpy32(head.grad)
    save_file(out, HERE / "layers.safetensors")


def make_model(name, cfg, batch, length, ignored, weights=make_weights, model_loss=model_loss):
    w = weights(cfg)
    ids = torch.randint(0, cfg["vocab"], (batch, length))
    targets = torch.randint(0, cfg["vocab"], (batch, length))
    for row, count in enumerate(ignored):
        targets[row, :count] = -100
    out = {"weights." + key: numpy32(tensor) for key, tensor in w.items()}
    out["ids"], out["targets"] = ids.to(torch.int32).numpy(), targets.to(torch.int32).numpy()

    leaves = {key: tensor.clone().requires_grad_() for key, tensor in w.items()}
    loss = model_loss(leaves, cfg, ids, targets)
    loss.backward()
    out["loss"] = np.array([loss.item()], dtype=np.float64)
    out.update({"d." + key: numpy32(tensor.grad) for key, tensor in leaves.items()})

    halves = {key: tensor.bfloat16().requires_grad_() for key, tensor in w.items()}
    half_loss = model_loss(halves, cfg, ids, targets)
    half_loss.backward()
    out["bf16.loss"] = np.array([half_loss.item()], dtype=np.float64)
    for key, tensor in halves.items():
        out["bf16.error." + key] = np.array([(tensor.grad.double() - leaves[key].grad).norm().item()], dtype=np.float64)

    # Twenty steps of AdamW on this batch, clipped to norm 1; decay for matrices only.
    steps = {key: tensor.clone().requires_grad_() for key, tensor in w.items()}
    groups = [
        {"params": [t for t in steps.values() if t.dim() >= 2], "weight_decay": 0.1},
        {"params": [t for t in steps.values() if t.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model_loss(steps, cfg, ids, targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(steps.values()), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    out["adamw.losses"], out["adamw.norms"] = np.array(losses), np.array(norms)
    save_file(out, HERE / f"{name}.safetensors")


if __name__ == "__main__":
    make_layers()
    base = dict(hidden=24, intermediate=40, layers=2, heads=4, kv_heads=2, head_dim=6, vocab=37, theta=10000.0, scaling=None, eps=1e-5)
    make_model("llama_tied", dict(base, tied=True), batch=4, length=16, ignored=[0, 9, 16, 3])
    llama3 = dict(type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=24)
    make_model("llama_llama3_rope", dict(base, tied=False, theta=500000.0, head_dim=10, heads=3, kv_heads=1, scaling=llama3), batch=2, length=21, ignored=[0, 0])
    make_model("llama_linear_rope", dict(base, tied=False, kv_heads=4, scaling=dict(type="linear", factor=4.0)), batch=2, length=11, ignored=[2, 0])
    # Odd widths; a seed of their own, so that the files above stay as they are.
    torch.manual_seed(20261130)
    small = dict(base, hidden=20, intermediate=28, eps=1e-6)
    make_model("qwen2", dict(small, head_dim=10, heads=2, kv_heads=1, tied=True, biased=("q_proj", "k_proj", "v_proj")), batch=3, length=13, ignored=[0, 5, 12])
    make_model("qwen3", dict(small, head_dim=6, heads=6, kv_heads=2, tied=False, qk_norm=True), batch=2, length=17, ignored=[0, 4])
    make_model("llama_biased", dict(small, head_dim=6, heads=3, kv_heads=3, tied=True, biased=("q_proj", "k_proj", "v_proj", "o_proj")), batch=2, length=9, ignored=[1, 0])
    gpt2 = dict(hidden=20, inner=44, layers=2, heads=4, vocab=37, positions=16, eps=1e-5)
    make_model("gpt2", dict(gpt2, tied=True), batch=3, length=13, ignored=[0, 5, 12], weights=make_gpt2_weights, model_loss=gpt2_loss)
    make_model("gpt2_untied", dict(gpt2, tied=False, layers=1), batch=2, length=16, ignored=[0, 0], weights=make_gpt2_weights, model_loss=gpt2_loss)
