"""Ctrl-C while the library computes, and threads that compute at once."""

import subprocess
import sys
import textwrap
import threading
import unittest

import contraflow as cf

PROGRAM = '''
    import os, signal, threading, time
    import contraflow as cf
    plan = cf.compile("1f1b", ranks=32, microbatches={microbatches})
    plan.programs  # what Python holds of it must not be freed by a thread of the library
    again = cf.Plan.from_json(plan.to_json())
    again.programs
    over = False
    threads = len(os.listdir("/proc/self/task")) + 1  # with the one that interrupts

    def interrupt():  # as soon as the library computes
        while len(os.listdir("/proc/self/task")) <= threads and not over:
            time.sleep(0.0005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        {call}
        over = True
        thread.join()
    except KeyboardInterrupt:
        print("late" if over else "interrupted")
    del again
    small = cf.compile("1f1b", ranks=2, microbatches=4)  # the interpreter is well
    small.verify()
    print(small.simulate().makespan)
'''


def interrupted(call, microbatches):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).format(call=call, microbatches=microbatches)],
        capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


class InterruptTest(unittest.TestCase):
    def test_ctrl_c(self):
        # The first takes minutes and ends early; the second longer than it is waited for.
        calls = ("cf.compile('auto', ranks=8, microbatches=48, comm=0.7, noise=0.2, budget='7m')",
                 "cf.compile('1f1b', ranks=64, microbatches={microbatches} * 8)", "again.verify()",
                 "again.makespan", "plan.simulate(comm=0.3)")
        for call in calls:
            microbatches = 500
            while True:
                found = interrupted(call.format(microbatches=microbatches), microbatches)
                if "late" not in found[1] or microbatches > 8000:
                    break
                microbatches *= 2  # it was done before anyone could interrupt it
            self.assertEqual(found[:2], (0, "interrupted\n15.0\n"), call + found[2])

    def test_threads(self):
        names = ["1f1b", "zb-v", "dualpipe", "auto"] * 3
        made = [None] * len(names)

        def work(at):
            plan = cf.compile(names[at], ranks=4, microbatches=16, comm=0.2)
            plan.verify()
            made[at] = (plan, plan.makespan, plan.simulate(comm=1).makespan)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(len(names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(made[:4], made[4:8])
        self.assertEqual(made[:4], made[8:])
        # One plan, asked by all for what it makes but once.
        plan = cf.Plan.from_json(cf.compile("1f1b", ranks=16, microbatches=200).to_json())
        found = []
        threads = [threading.Thread(target=lambda: found.append((plan.makespan, len(plan.programs))))
                   for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [(plan.makespan, 16)] * 8)


if __name__ == "__main__":
    unittest.main()
