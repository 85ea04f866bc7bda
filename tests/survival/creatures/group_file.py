"""Files in a folder that a group shares: the own one and a colleague's, and the folder to work in."""

import os

from stage import stages

os.chdir("/shared/project")
own = open("results", "r+")
colleagues = open("/shared/project/colleague", "r+")
for file in (own, colleagues):
    file.seek(0, os.SEEK_END)
found = os.stat("results")
assert found.st_gid in os.getgroups() and found.st_gid != os.getgid()
groups = sorted(os.getgroups())

for stage in stages():
    for file in (own, colleagues):
        file.write(f"{stage}\n")
        file.flush()
    with open(stage, "w") as file:
        file.write(stage)
    assert os.stat(stage).st_gid == os.stat("/shared").st_gid
    assert os.getcwd() == "/shared/project" and sorted(os.getgroups()) == groups
