"""A shell with job control: one job in the background, one stopped, one continued and stopped."""

import re

from stage import stages, state_of, wait_for
from terminals import PROMPT, Terminal

shell = Terminal("/bin/bash", "--norc", "--noprofile", "--noediting", "-i")
shell.shows(PROMPT)
shell.type("sleep 1000 &\n")
shell.shows(PROMPT)
shell.type("cat\n")
shell.shows("cat\r\n")
shell.type("before\n")
shell.shows("before\r\nbefore\r\n")
shell.type("\x1a")
assert "Stopped" in shell.shows(PROMPT)
shell.type('echo $(jobs -p) "end"\n')
found = re.search(r"(\d+) (\d+) end", shell.shows(f" end\r\n{PROMPT}"))
background, stopped = map(int, found.groups())
settings = shell.settings()

for number, _ in enumerate(stages()):
    # The shell has not noticed anything: no line was written, no job changed its state.
    assert shell.rest() == ""
    assert shell.settings() == settings
    assert (state_of(background), state_of(stopped)) == ("S", "T")
    shell.type("jobs\n")
    listed = shell.shows(PROMPT)
    assert "Stopped" in listed and "Running" in listed
    shell.type("fg %2\n")
    shell.shows("cat\r\n")
    shell.type(f"after {number}\n")
    shell.shows(f"after {number}\r\nafter {number}\r\n")
    wait_for(lambda: state_of(stopped) == "S")
    shell.type("\x1a")
    assert "Stopped" in shell.shows(PROMPT)
