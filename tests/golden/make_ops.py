#!/usr/bin/env python3
"""Golden values for tests/ops, computed by PyTorch in float64.

    python tests/golden/make_ops.py        # writes tests/golden/ops.json and ops.bin

Inputs are rounded to fp32 first, so that an op under test reads exactly the numbers PyTorch computed with. ops.json maps a name such as
"attention.d_q" to {"dtype": "f32" | "f64" | "i32", "shape": [...], "offset": byte offset in ops.bin}; ops.bin is little-endian.
"""
import json
import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(20240607)
entries = {}
blob = bytearray()


def put(name, tensor, dtype):
    kind = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32"}[dtype]
    data = tensor.detach().to(dtype).contiguous().numpy().tobytes()
    blob.extend(b"\0" * (-len(blob) % 8))
    entries[name] = {"dtype": kind, "shape": list(tensor.shape), "offset": len(blob)}
    blob.extend(data)


def given(name, *shape, scale=1.0):
    """A random input of the op: stored in fp32, returned in float64 with its gradient on."""
    value = (torch.randn(*shape) * scale).float()
    put(name, value, torch.float32)
    return value.double().requires_grad_()


def given_ids(name, values):
    put(name, values, torch.int32)
    return values.long()


def want(name, tensor):
    put(name, tensor, torch.float64)


def linear():
    x, weight, d_y = given("linear.x", 9, 21), given("linear.weight", 13, 21), given("linear.d_y", 9, 13)
    y = F.linear(x, weight)
    y.backward(d_y)
    want("linear.y", y), want("linear.d_x", x.grad), want("linear.d_weight", weight.grad)


def rms_norm():
    x, delta, weight = given("norm.x", 5, 27), given("norm.delta", 5, 27), given("norm.weight", 27)
    d_out, d_residual = given("norm.d_out", 5, 27), given("norm.d_residual", 5, 27)
    residual = x + delta
    residual.retain_grad()
    out = F.rms_norm(residual, (27,), weight, eps=1e-5)
    ((out * d_out).sum() + (residual * d_residual).sum()).backward()
    want("norm.residual", residual), want("norm.out", out)
    want("norm.d_x", x.grad), want("norm.d_weight", weight.grad)


def rope():
    # The rotation of Hugging Face's Llama: x · cos + rotate_half(x) · sin, both tables repeated over the two halves.
    tokens, heads, width, longest = 6, 3, 20, 40
    x, d_out = given("rope.x", tokens, heads, width), given("rope.d_out", tokens, heads, width)
    positions = given_ids("rope.positions", torch.tensor([0, 1, 5, 39, 7, 2]))
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(longest, dtype=torch.float64)[:, None] * frequencies[None, :]
    put("rope.cosines", angles.cos(), torch.float32), put("rope.sines", angles.sin(), torch.float32)
    cosines = torch.cat([angles.cos().float().double()] * 2, dim=-1)[positions][:, None, :]
    sines = torch.cat([angles.sin().float().double()] * 2, dim=-1)[positions][:, None, :]
    rotated = torch.cat([-x[..., width // 2:], x[..., :width // 2]], dim=-1)
    out = x * cosines + rotated * sines
    out.backward(d_out)
    want("rope.out", out), want("rope.d_x", x.grad)


def swiglu():
    gate_up, d_out = given("swiglu.gate_up", 7, 38, scale=3.0), given("swiglu.d_out", 7, 19)
    gate, up = gate_up.chunk(2, dim=-1)
    out = F.silu(gate) * up
    out.backward(d_out)
    want("swiglu.out", out), want("swiglu.d_gate_up", gate_up.grad)


def embedding():
    table, d_out = given("embedding.table", 6, 11), given("embedding.d_out", 10, 11)
    ids = given_ids("embedding.ids", torch.tensor([3, 0, 3, 5, 5, 3, 1, 0, 3, 2]))
    out = F.embedding(ids, table)
    out.backward(d_out)
    want("embedding.out", out), want("embedding.d_table", table.grad)


def cross_entropy():
    logits = given("cross_entropy.logits", 9, 37, scale=4.0)
    targets = given_ids("cross_entropy.targets", torch.tensor([0, 36, -100, 5, 17, -100, 21, 21, 8]))
    loss = F.cross_entropy(logits, targets, ignore_index=-100, reduction="mean")
    loss.backward()
    want("cross_entropy.mean_loss", loss.reshape(1)), want("cross_entropy.d_logits", logits.grad)


def attention():
    # 70 tokens: more than one tile of 64. Four query heads share two KV heads.
    tokens, heads, kv_heads, width = 70, 4, 2, 8
    q, d_out = given("attention.q", tokens, heads, width), given("attention.d_out", tokens, heads, width)
    k, v = given("attention.k", tokens, kv_heads, width), given("attention.v", tokens, kv_heads, width)
    group = heads // kv_heads
    as_heads = [t.transpose(0, 1).repeat_interleave(group if t is not q else 1, dim=0) for t in (q, k, v)]
    out = F.scaled_dot_product_attention(*as_heads, is_causal=True).transpose(0, 1)
    out.backward(d_out)
    scores = as_heads[0] @ as_heads[1].transpose(1, 2) / width**0.5
    hidden = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), 1)
    want("attention.lse", scores.masked_fill(hidden, float("-inf")).logsumexp(-1))
    want("attention.out", out)
    want("attention.d_q", q.grad), want("attention.d_k", k.grad), want("attention.d_v", v.grad)


def adamw():
    steps, count = 20, 37
    weights = given("adamw.weights", count)
    gradients = given("adamw.gradients", steps, count, scale=0.1)
    rates = [1e-2 * (step + 1) / steps for step in range(steps)]
    optimizer = torch.optim.AdamW([weights], lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rates[step]
        weights.grad = gradients.detach()[step].clone()
        optimizer.step()
    state = optimizer.state[weights]
    want("adamw.final_weights", weights), want("adamw.exp_avg", state["exp_avg"]), want("adamw.exp_avg_sq", state["exp_avg_sq"])


for case in (linear, rms_norm, rope, swiglu, embedding, cross_entropy, attention, adamw):
    case()
folder = pathlib.Path(__file__).parent
(folder / "ops.bin").write_bytes(blob)
(folder / "ops.json").write_text(json.dumps(entries, indent=1) + "\n")
print(f"{len(entries)} tensors, {len(blob)} bytes, PyTorch {torch.__version__}")
