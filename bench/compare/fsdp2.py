#!/usr/bin/env python3
"""PyTorch's FSDP2 with torch.compile on several GPUs: what multi_gpu.sh sets beside baleen's ZeRO.

    torchrun --standalone --nproc-per-node N bench/compare/fsdp2.py --peers DIR --model qwen2.5-1.5b --seq 1024 --micro 16 --accum 16 [--zero 2|3] [--layers N]

DIR holds torch_baseline.py, whose model this trains. bf16 compute over sharded fp32 weights and states (MixedPrecisionPolicy), gradients
reduced in fp32 and only behind the last micro-batch, blocks compiled one by one, cuDNN attention, fused AdamW, gradients clipped. --zero 2 keeps
gathered weights from the forward pass until the end of the step, --zero 3 gathers them twice a micro-batch. Rank 0 prints one JSON line.
"""
import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel


def build(options, shapes, model_class):
    with torch.device("cuda"):
        model = model_class(shapes, options.seq)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block)
        fully_shard(model.blocks[i], mp_policy=policy, reshard_after_forward=options.zero == 3)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    return model


def main(options):
    sys.path.insert(0, options.peers)
    from torch_baseline import LM, MODELS  # pylint: disable=import-outside-toplevel
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    shapes = dict(MODELS[options.model])
    shapes["layers"] = options.layers or shapes["layers"]
    model = build(options, shapes, LM)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = torch.compile(lambda logits, y: F.cross_entropy(logits.float().view(-1, logits.size(-1)), y.reshape(-1)))
    vocabulary = MODELS[options.model]["vocab"]
    data = torch.randint(0, vocabulary, (8, options.micro, options.seq + 1), device="cuda")
    times = []
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        for step in range(options.steps + 2):
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.time()
            accum = 2 if step == 0 else options.accum  # the first only compiles
            for micro in range(accum):
                last = micro + 1 == accum
                model.set_requires_gradient_sync(last)
                model.set_reshard_after_backward(last or options.zero == 3)
                batch = data[micro % len(data)]
                (loss_of(model(batch[:, :-1]), batch[:, 1:]) / accum).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            times.append(time.time() - begin)
    tokens = options.micro * options.seq * options.accum * dist.get_world_size()
    if rank == 0:
        print(json.dumps({"peer": f"FSDP2, torch {torch.__version__}", "model": options.model, "ranks": dist.get_world_size(),
                          "tokens_per_s": round(tokens / statistics.median(times[2:])), "step_s": [round(t, 3) for t in times],
                          "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", required=True)
    parser.add_argument("--model", default="qwen2.5-1.5b")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--micro", type=int, default=16)
    parser.add_argument("--accum", type=int, default=16)
    parser.add_argument("--zero", type=int, default=2, choices=(2, 3))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=0, help="instead of the model's: a few fill the compiler's cache as well as all")
    main(parser.parse_args())
