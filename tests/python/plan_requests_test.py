"""Random requests of `cf.plan`: the first row against random configurations of the same request.

Each request is a model, GPUs, a batch and a budget. A request holds where every row fits its GPU
and the first row takes no longer than any of the configurations drawn, each searched alone, but for
the 0.3 % at which a search ends. To run more: plan_requests_test.py --requests 300 --draws 50.
"""

import argparse
import random
import sys
import time

import contraflow as cf


def random_model(draw):
    heads = draw.choice([8, 16, 32])
    config = {"model_type": "llama", "hidden_size": 128 * heads, "num_attention_heads": heads,
              "num_key_value_heads": draw.choice([heads, heads // 4]), "head_dim": 128,
              "num_hidden_layers": draw.choice([8, 12, 24, 32, 46]),
              "intermediate_size": 512 * draw.choice([heads, heads // 2]),
              "vocab_size": draw.choice([32000, 128256]), "tie_word_embeddings": draw.random() < 0.3}
    if draw.random() < 0.5:
        config.update(model_type="qwen3_moe", num_experts=draw.choice([8, 16, 64]),
                      num_experts_per_tok=draw.choice([2, 4]), moe_intermediate_size=64 * heads,
                      decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True)
    return config


def random_request(draw):
    gpus = draw.choice([4, 8, 16, 24, 32, 64])
    seq = draw.choice([1024, 4096, 8192])
    request = {"model": random_model(draw), "gpu": draw.choice(["h100", "a100-40gb", "b200", "mi300x"]),
               "gpus": gpus, "global_batch": gpus * draw.choice([1, 4, 12]), "seq": seq, "top": 3}
    if draw.random() < 0.3:
        request["only"] = draw.choice(["1f1b", "1f1b,interleaved-1f1b", "zb-v,1f1b"])
    if draw.random() < 0.3:
        request["memory"] = draw.choice(["24GB", "40GB"])
    if draw.random() < 0.3:
        request["optimizer"] = draw.choice(["adam-bf16", "adam-8bit", "muon"])
    return request


def random_fix(draw, request):
    gpus, moe = request["gpus"], "num_experts" in request["model"]
    power = lambda most: draw.choice([n for n in (1, 2, 4, 8, 16) if n <= most])
    tp = power(min(8, gpus))
    return {"tp": tp, "cp": power(max(1, request["seq"] // 4096)), "ep": power(16) if moe else 1,
            "etp": draw.choice([1, tp]) if moe else 1,
            "pp": draw.choice([n for n in range(1, gpus + 1) if gpus % n == 0]),
            "micro_batch": power(8)}


def flaws_of(draw, request, draws, budget):
    """Returns the flaws of a request, and the configurations that were compared with its first row."""
    flaws = []
    try:
        plans = cf.plan(**request, budget=budget)
    except cf.Error as error:
        plans, refusal = None, str(error)
    limit = {"24GB": 24e9, "40GB": 40e9}.get(request.get("memory"))
    rows = plans.rows if plans else []
    for row in rows:
        if limit and row["memory"]["total"] > limit:
            flaws.append(f"over its memory: {row}")
    compared = 0
    for _ in range(draws):
        fix = random_fix(draw, request)
        try:
            row = cf.plan(**{**request, "fix": fix, "top": 1}, budget="20ms").rows[0]
        except cf.Error:
            continue
        compared += 1
        if not rows:
            flaws.append(f"refused ({refusal}), and {fix} fits")
            break
        if row["step"] < rows[0]["step"] * 0.997:
            flaws.append(f"{row['step'] / rows[0]['step'] - 1:+.2%}: {fix} {row['schedule']}"
                         f" before {rows[0]}")
    return flaws, compared


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=3)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", default="2s")
    options = parser.parse_args()
    flawed = refused = compared = 0
    began = time.time()
    for number in range(options.requests):
        draw = random.Random(options.seed * 1_000_003 + number)
        request = random_request(draw)
        flaws, count = flaws_of(draw, request, options.draws, options.budget)
        compared += count
        refused += count == 0
        flawed += bool(flaws)
        for flaw in flaws:
            print(f"request {number} {request}: {flaw}", flush=True)
    print(f"{options.requests} requests, {compared} configurations compared, {refused} with none that "
          f"fits, {flawed} flawed, {time.time() - began:.0f} s", flush=True)
    return flawed > 0 or compared == 0


if __name__ == "__main__":
    sys.exit(main())
