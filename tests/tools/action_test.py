"""Runs the steps of tools/action/action.yml as GitHub does, with a wheel, on sound and on failing plans.

    action_test.py WHEEL     needs PyYAML, bash, and pip that installs the wheel's dependencies
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

ACTION = pathlib.Path(__file__).resolve().parents[2] / "tools" / "action"


def filled(text, inputs):
    """Returns a value of the action with its `${{ .. }}` replaced."""
    values = {"inputs." + name: value for name, value in inputs.items()}
    values["github.action_path"] = str(ACTION)
    return re.sub(r"\$\{\{ *([^ }]+) *\}\}", lambda match: values[match[1]], str(text))


def run_action(folder, temporary, given):
    """Runs the steps in a folder. Returns the exit code of the first that fails, else 0, and all output."""
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    unknown = set(given) - set(action["inputs"])
    assert not unknown, unknown
    missing = [name for name, entry in action["inputs"].items() if entry.get("required") and name not in given]
    assert not missing, missing
    inputs = {name: str(entry.get("default", "")) for name, entry in action["inputs"].items()} | given
    output = ""
    for step in action["runs"]["steps"]:
        environment = os.environ | {"RUNNER_TEMP": str(temporary)}
        environment |= {name: filled(value, inputs) for name, value in step.get("env", {}).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(step["run"], inputs)]
        done = subprocess.run(command, cwd=folder, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output += done.stdout
        if done.returncode != 0:
            return done.returncode, output
    return 0, output


def main(wheel):
    with tempfile.TemporaryDirectory() as name:
        folder, temporary = pathlib.Path(name) / "repository", pathlib.Path(name) / "temp"
        (folder / "plans").mkdir(parents=True)
        temporary.mkdir()
        (folder / "limits.json").write_text('{"max_bubble_ratio": 0.25}\n')
        common = {"plans": "plans/*.json", "bounds": "limits.json", "wheel": str(pathlib.Path(wheel).resolve())}

        code, output = run_action(folder, temporary, common)
        assert code == 1 and "plans/*.json" in output, (code, output)  # there are no plans yet

        contraflow = temporary / "contraflow" / "bin" / "contraflow"
        for schedule, file in (("zb-v", "good"), ("1f1b", "second")):
            subprocess.run([contraflow, "compile", "--schedule", schedule, "--ranks", "4", "--microbatches", "16",
                            "-o", folder / "plans" / (file + ".json")], check=True)
        code, output = run_action(folder, temporary, common)
        assert code == 0, (code, output)
        report = (folder / "contraflow-junit.xml").read_text()
        assert 'failures="0"' in report and "second.json" in report, report

        code, output = run_action(folder, temporary, common | {"options": "--max-bubble-ratio 5%", "junit": "other.xml"})
        assert code == 1, (code, output)
        assert "::error file=plans/second.json" in output, output
        assert 'failures="1"' in (folder / "other.xml").read_text()

        plan = folder / "plans" / "good.json"
        text = plan.read_text()
        assert "F s0 m0" in text
        plan.write_text(text.replace("F s0 m0", "F s0 m1", 1))
        code, output = run_action(folder, temporary, common)
        assert code == 1 and "good.json" in output, (code, output)
    print("action: ok")


main(sys.argv[1])
