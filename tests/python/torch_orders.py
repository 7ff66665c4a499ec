#!/usr/bin/env python3
"""Holds `contraflow verify`, `import` and `export` against PyTorch's own pipeline schedules.

files    PyTorch writes its schedules (compute only, and lowered under five sets of options); each is
         imported, exported and compared: compute only byte for byte, lowered cell for cell.
single   the same of the orders that PyTorch writes for GPipe and 1F1B.
defer    the orders of defer_pp_recv train over gloo; their gradients are compared with one
         process, and with what `contraflow verify` says of the same order.
mutants  lowered orders are changed and run by PyTorch over gloo; `contraflow verify` must refuse
         exactly those that hang, fail or give other gradients.

Needs PyTorch 2.15 or later (WAIT_SEND cells, defer_pp_recv). Exit code 1 if anything disagrees.
"""

import argparse
import collections
import csv
import datetime
import json
import logging
import multiprocessing
import os
import queue
import random
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

WIDTH = 4

OPTIONS = {
    "plain": {},
    "defer_pp_recv": {"defer_pp_recv": True},
    "unshard auto": {"unshard_lookahead": "auto"},
    "reduce late": {"defer_reduce_grad_wait": True},
    "4 sends": {"max_outstanding_sends": 4},
}
V_SHAPES = ("ZBVZeroBubble", "DualPipeV")
SINGLE = ("GPipe", "1F1B")  # of one stage a rank: PyTorch runs them by other means, and writes an order as well


def stages_of(name, ranks, chunks, rank):
    """The stages that a rank holds under this schedule."""
    if name in V_SHAPES:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + chunk * ranks for chunk in range(chunks)]


class NamedStage:
    """Calls of a schedule on a stage to write its order, without a process group."""

    p2p_per_edge = False
    has_backward = True
    submod = None
    device = "cpu"

    def __init__(self, index, stages, ranks):
        self.stage_index = index
        self.num_stages = stages
        self.group_size = ranks
        self.group_rank = 0
        self.is_first = index == 0
        self.is_last = index == stages - 1
        self.stage_index_to_group_rank = None


def make_order(name, ranks, chunks, microbatches, **options):
    """PyTorch's schedule object; raises what PyTorch raises."""
    stages = [NamedStage(s, chunks * ranks, ranks) for s in stages_of(name, ranks, chunks, 0)]
    made = getattr(torch_schedules, "Schedule" + name)
    if name in SINGLE:
        stages = stages[0]
    return made(stages, microbatches, loss_fn=lambda output, target: output, **options)


def run(contraflow, *words):
    done = subprocess.run([contraflow, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def cells_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


# ---------------------------------------------------------------- files


def check_files(contraflow, folder, largest):
    """Show: all import or are refused for a reason; exports equal imports."""
    shapes = [
        (name, chunks)
        for name, every in (
            ("LoopedBFS", (1, 2, 3)),
            ("Interleaved1F1B", (1, 2, 3)),
            ("InterleavedZeroBubble", (1, 2, 3)),
            ("ZBVZeroBubble", (2,)),
            ("DualPipeV", (2,)),
        )
        for chunks in every
    ]
    counts = collections.Counter()
    reasons = collections.Counter()
    wrong = []
    for name, chunks in shapes:
        for ranks in range(1, 9):
            for microbatches in (1, 2, 3, 4, 5, 8, 12, 16, 24, 40):
                if microbatches > largest:
                    continue
                for label, options in OPTIONS.items():
                    try:
                        order = make_order(name, ranks, chunks, microbatches, **options)
                    except (ValueError, RuntimeError, AssertionError, IndexError, KeyError, ZeroDivisionError):
                        counts["PyTorch itself refuses"] += 1
                        continue
                    forms = ["compute_comms"]
                    if label == "plain":
                        forms.append("compute_only")
                    for form in forms:
                        what = f"{name} {ranks} x {microbatches}, {chunks} chunks, {label}, {form}"
                        path = os.path.join(folder, "torch.csv")
                        order._dump_csv(path, format=form)
                        check_file(contraflow, path, form, what, counts, reasons, wrong)
    for key, count in sorted(counts.items()):
        print(f"files: {key}: {count}")
    for reason, count in reasons.most_common():
        print(f"files: refused {count} x: {reason}")
    for line in wrong:
        print("files: WRONG:", line)
    return not wrong


def check_file(contraflow, path, form, what, counts, reasons, wrong):
    plan, again = path + ".json", path + ".again.csv"
    code, _, error = run(contraflow, "import", path, "--from", "torch-csv", "-o", plan)
    if code == 1:
        # A reason that is not of an order's own: crossed messages. All else must import.
        code, out, _ = run(contraflow, "verify", path, "--json")
        checks = {finding["check"] for finding in json.loads(out)["findings"]} if out else set()
        if checks <= {"message", "deadlock"} and "message" in checks:
            counts[f"{form}: refused"] += 1
            reasons["crossed messages, with " + what.split(", ")[2]] += 1
            return
        wrong.append(f"{what}: not imported: {error.strip()[:300]}")
        return
    if code != 0:
        wrong.append(f"{what}: import exits with {code}: {error.strip()[:300]}")
        return
    counts[f"{form}: imported"] += 1
    shape = "compute" if form == "compute_only" else "compute_comms"
    code, _, error = run(
        contraflow, "export", plan, "--to", "torch-csv", "--form", shape, "-o", again
    )
    if code != 0:
        wrong.append(f"{what}: not exported: {error.strip()[:300]}")
        return
    if form == "compute_only":
        with open(path, "rb") as first, open(again, "rb") as second:
            same = first.read() == second.read()
    else:
        same = cells_of(path) == cells_of(again)
    counts[f"{form}: came back the same"] += same
    if not same:
        wrong.append(f"{what}: comes back otherwise")


def is_complete(rows, ranks, microbatches):
    """Whether each chunk has one forward and one backward."""
    cells = collections.Counter(cell for row in rows for cell in row if cell and "REDUCE_GRAD" not in cell)
    return cells == collections.Counter(
        f"{rank}{kind}{m}" for rank in range(ranks) for kind in "FB" for m in range(microbatches))


def check_single(contraflow, folder, largest):
    """The orders that PyTorch writes for schedules of one stage a rank: what is complete comes back byte for
    byte, but for REDUCE_GRAD, and what is not (1F1B of 2.15 begins its last rank with micro-batch 1) is
    refused."""
    counts, reasons, wrong = collections.Counter(), collections.Counter(), []
    for name in SINGLE:
        for ranks in range(1, 9):
            for microbatches in (1, 2, 3, 4, 5, 8, 12, 16, 24, 40):
                if microbatches > largest:
                    continue
                what = f"{name} {ranks} x {microbatches}, single, plain"
                path = os.path.join(folder, "single.csv")
                try:
                    rows = list(make_order(name, ranks, 1, microbatches).pipeline_order.values())
                except ValueError:  # fewer micro-batches than stages
                    counts["PyTorch itself refuses"] += 1
                    continue
                with open(path, "w", newline="") as file:
                    csv.writer(file).writerows(rows)
                code, _, error = run(contraflow, "import", path, "--from", "torch-csv", "-o", path + ".json")
                if is_complete(cells_of(path), ranks, microbatches):
                    if code != 0:
                        wrong.append(f"{what}: not imported: {error.strip()[:300]}")
                    # PyTorch adds these itself to an order that it reads.
                    rows = [[cell for cell in row if "REDUCE_GRAD" not in str(cell)] for row in rows]
                    with open(path, "w", newline="") as file:
                        csv.writer(file).writerows(rows)
                    check_file(contraflow, path, "compute_only", what, counts, reasons, wrong)
                    continue
                counts[f"{name}: not complete, refused"] += code == 1
                if code != 1:
                    wrong.append(f"{what}: not complete, and import exits with {code}")
    for key, count in sorted(counts.items()):
        print(f"single: {key}: {count}")
    for line in wrong:
        print("single: WRONG:", line)
    return not wrong


# ---------------------------------------------------------------- gloo


def make_module(stage):
    torch.manual_seed(1000 + stage)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())


def make_batch(microbatches):
    torch.manual_seed(7)
    return torch.randn(microbatches, WIDTH), torch.randn(microbatches, WIDTH)


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def reference(stages, microbatches):
    """Gradients of every stage by one process."""
    modules = [make_module(s) for s in range(stages)]
    x, y = make_batch(microbatches)
    for m in range(microbatches):
        value = x[m : m + 1]
        for module in modules:
            value = module(value)
        (loss_of(value, y[m : m + 1]) / microbatches).backward()
    return {s: [p.grad.numpy().copy() for p in module.parameters()] for s, module in enumerate(modules)}


def train(rank, ranks, path, microbatches):
    """Two steps of a rank under the order in the file; the gradients of the second by stage."""
    rows = cells_of(path)
    owner = {}
    for row, cells in enumerate(rows):
        for cell in cells:
            for part in cell.strip("()").replace(")OVERLAP_F_B", "").split(";"):
                digits = part[: len(part) - len(part.lstrip("0123456789"))]
                if digits:
                    owner[int(digits)] = row
    count = len(owner)
    mine = [s for s in range(count) if owner[s] == rank]
    modules = {s: make_module(s) for s in mine}
    stages = [PipelineStage(modules[s], s, count, torch.device("cpu")) for s in mine]
    schedule = torch_schedules._PipelineScheduleRuntime(stages, microbatches, loss_fn=loss_of)
    schedule._load_csv(path, format="compute_comms")
    x, y = make_batch(microbatches)
    inputs = (x,) if 0 in mine else ()
    targets = {"target": y, "losses": []} if count - 1 in mine else {}
    for _ in range(2):  # A message that a step leaves posted takes one of the next step.
        for module in modules.values():
            module.zero_grad()
        schedule.step(*inputs, **targets)
    return {s: [p.grad.numpy() for p in modules[s].parameters()] for s in mine}


def work(rank, ranks, address, patience, jobs, results):
    """A rank: jobs are (number, file, micro-batches); the answer is gradients or an error."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    sys.stderr = open(os.devnull, "w")
    timeout = datetime.timedelta(seconds=patience)
    for number, path, microbatches in iter(jobs.get, None):
        store = dist.FileStore(f"{address}.{number}", ranks)
        answer = None
        try:
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
            answer = train(rank, ranks, path, microbatches)
        except Exception as error:  # Whatever PyTorch makes of a wrong order.
            answer = f"{type(error).__name__}: {str(error)[:200]}"
        try:
            dist.destroy_process_group()
        except Exception:
            pass
        results.put((number, rank, answer))


class Gloo:
    """Ranks that run one order after another."""

    def __init__(self, ranks, folder, patience):
        """`patience`: seconds after which a message that nobody takes counts as a hang."""
        self.ranks, self.folder, self.patience, self.number = ranks, folder, patience, 0
        self.processes = []

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.jobs = [context.Queue() for _ in range(self.ranks)]
        self.results = context.Queue()
        address = os.path.join(tempfile.mkdtemp(dir=self.folder), "store")
        self.processes = [
            context.Process(
                target=work,
                args=(r, self.ranks, address, self.patience, self.jobs[r], self.results),
                daemon=True,
            )
            for r in range(self.ranks)
        ]
        for process in self.processes:
            process.start()

    def stop(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.processes = []

    def outcome(self, path, microbatches, wanted):
        """"right", "wrong gradients (0.43)", "hangs" or what PyTorch says."""
        for _ in range(5):
            said = self.attempt(path, microbatches, wanted)
            if "Wait timeout" not in said and "connectFullMesh" not in said:
                break
            # The ranks did not find each other in time: nothing was run. New ones do.
            self.stop()
        return said

    def attempt(self, path, microbatches, wanted):
        if not self.processes:
            self.start()
        self.number += 1
        for jobs in self.jobs:
            jobs.put((self.number, path, microbatches))
        answers = {}
        try:
            while len(answers) < self.ranks:
                number, rank, answer = self.results.get(timeout=60 + 4 * self.patience)
                if number == self.number:
                    answers[rank] = answer
        except queue.Empty:
            self.stop()
            return "hangs"
        said = [answer for answer in answers.values() if isinstance(answer, str)]
        if said:
            own = [text for text in said if "imed out" not in text and "onnection" not in text]
            return own[0] if own else "hangs"
        worst = 0.0
        for gradients in answers.values():
            for stage, tensors in gradients.items():
                for got, want in zip(tensors, wanted[stage]):
                    worst = max(worst, float(abs(got - want).max()))
        return "right" if worst < 1e-5 else f"wrong gradients ({worst:.2g})"


def verdict(contraflow, path):
    """Verdict of verify: the semantics it needs, or the checks that object."""
    code, out, error = run(contraflow, "verify", path, "--json")
    if not out:
        return False, error.strip()
    document = json.loads(out)
    if code == 0:
        return True, document["semantics"]
    return False, " ".join(sorted({finding["check"] for finding in document["findings"]}))


# ---------------------------------------------------------------- defer


def check_defer(contraflow, folder, wanted_ranks):
    agree = True
    print("| schedule | P | M | PyTorch over gloo | contraflow verify |")
    print("|---|---|---|---|---|")
    for ranks in wanted_ranks:
        gloo = Gloo(ranks, folder, 60)
        for name in ("ZBVZeroBubble", "DualPipeV", "Interleaved1F1B", "InterleavedZeroBubble"):
            for microbatches in sorted({ranks, 2 * ranks, 8}):
                try:
                    order = make_order(name, ranks, 2, microbatches, defer_pp_recv=True)
                except ValueError:
                    continue
                path = os.path.join(folder, f"{name}_{ranks}_{microbatches}.csv")
                order._dump_csv(path)
                ran = gloo.outcome(path, microbatches, reference(2 * ranks, microbatches))
                sound, why = verdict(contraflow, path)
                text = f"sound, needs {why}" if sound else f"refused: {why}"
                print(f"| {name} | {ranks} | {microbatches} | {ran} | {text} |", flush=True)
                wrong = "message" in why
                agree &= sound == (ran == "right") and wrong == ran.startswith("wrong")
        gloo.stop()
    return agree


# ---------------------------------------------------------------- mutants


def mutate(rows, generator):
    rows = [list(row) for row in rows]
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        row = generator.choice(rows)
        at = generator.randrange(len(row))
        what = generator.randrange(10)
        messages = [k for k, cell in enumerate(row) if "SEND" in cell or "RECV" in cell]
        if what == 0:
            del row[at]
        elif what == 1:
            row.insert(generator.randrange(len(row) + 1), row[at])
        elif what == 2:
            row.insert(generator.randrange(len(row)), row.pop(at))
        else:  # A message goes a few places up or down.
            at = generator.choice(messages)
            far = at + generator.choice((-4, -3, -2, -1, 1, 2, 3, 4))
            row.insert(max(0, min(len(row) - 1, far)), row.pop(at))
        if not row:
            row.append("0F0")
    return rows


def check_mutants(contraflow, folder, count, seed):
    generator = random.Random(seed)
    bases = [
        (name, ranks, microbatches, options)
        for name, ranks, microbatches in (
            ("InterleavedZeroBubble", 2, 3),
            ("Interleaved1F1B", 2, 4),
            ("ZBVZeroBubble", 2, 4),
            ("DualPipeV", 2, 4),
        )
        for options in ({}, {"defer_pp_recv": True})
    ]
    tally = collections.Counter()
    wrong = []
    gloo = Gloo(2, folder, 5)
    for number in range(count):
        name, ranks, microbatches, options = bases[number % len(bases)]
        order = make_order(name, ranks, 2, microbatches, **options)
        path = os.path.join(folder, "mutant.csv")
        order._dump_csv(path)
        rows = mutate(cells_of(path), generator)
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(rows)
        sound, why = verdict(contraflow, path)
        ran = gloo.outcome(path, microbatches, reference(2 * ranks, microbatches))
        kind = ran if ran in ("right", "hangs") else ran.split(" (")[0].split(":")[0]
        tally["accepted" if sound else "refused", kind] += 1
        if sound != (ran == "right"):
            keep = os.path.join(folder, f"disagreement{number}.csv")
            os.replace(path, keep)
            wrong.append(f"{keep}: {name} {ranks} x {microbatches}: PyTorch: {ran}; verify: {why}")
            print("mutants: WRONG:", wrong[-1], flush=True)
    gloo.stop()
    for (said, ran), number in sorted(tally.items()):
        print(f"mutants: {said}, PyTorch: {ran}: {number}")
    print(f"mutants: {count} run, {len(wrong)} disagree")
    return not wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("contraflow", help="path of the contraflow binary")
    parser.add_argument("--only", choices=("files", "single", "defer", "mutants"), help="default: all")
    parser.add_argument("--largest", type=int, default=40, help="files: most micro-batches (40)")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=(2, 3, 4), help="defer: numbers of ranks (2 3 4)"
    )
    parser.add_argument("--mutants", type=int, default=200, help="how many mutants (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the mutants (1)")
    parser.add_argument("--keep", help="a folder for the files, default: one that is removed")
    options = parser.parse_args()
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < (2, 15):
        parser.error(f"needs PyTorch 2.15 or later, this is {torch.__version__}")
    binary = os.path.abspath(options.contraflow)
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or temporary
        os.makedirs(folder, exist_ok=True)
        if options.only in (None, "files"):
            good &= check_files(binary, folder, options.largest)
        if options.only in (None, "single"):
            good &= check_single(binary, folder, options.largest)
        if options.only in (None, "defer"):
            good &= check_defer(binary, folder, options.ranks)
        if options.only in (None, "mutants"):
            good &= check_mutants(binary, folder, options.mutants, options.seed)
    print("torch orders:", "ok" if good else "NOT as PyTorch has it")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
