"""Ctrl-C while the library computes, and threads that compute at once."""

import subprocess
import sys
import textwrap
import threading
import unittest

import contraflow as cf

PROGRAM = '''
    import os, signal, threading
    import contraflow as cf
    plan = cf.compile("1f1b", ranks=32, microbatches={microbatches})
    plan.programs  # what Python holds of it must not be freed by a thread of the library
    again = cf.Plan.from_json(plan.to_json())
    again.programs
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        {call}
    except KeyboardInterrupt:
        print("interrupted")
    del again
    small = cf.compile("1f1b", ranks=2, microbatches=4)  # the interpreter is well
    small.verify()
    print(small.simulate().makespan)
'''


class InterruptTest(unittest.TestCase):
    def test_ctrl_c(self):
        # The first takes minutes and ends early; the second longer than it is waited for; the others
        # longer than the interrupt takes to come.
        calls = ((1, "cf.compile('auto', ranks=8, microbatches=48, comm=0.7, noise=0.2, budget='7m')"),
                 (1, "cf.compile('1f1b', ranks=64, microbatches=4000)"),
                 (1000, "again.verify()"), (1000, "again.makespan"), (1000, "plan.simulate(comm=0.3)"))
        running = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM).format(
                                        call=call, microbatches=microbatches)],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for microbatches, call in calls]
        for (_, call), process in zip(calls, running):
            printed, said = process.communicate()
            self.assertEqual((process.returncode, printed), (0, "interrupted\n15.0\n"), call + said)

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
