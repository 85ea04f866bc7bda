"""What the kernels of a session compute before it sleeps, and how they are asked afterwards."""

SCIENCE = """
import hashlib, io
import numpy as np, pandas as pd
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt

random = np.random.default_rng(1)
array = random.normal(size=(400, 1000))
frame = pd.DataFrame({"key": np.arange(50_000) % 7, "value": random.normal(size=50_000)})
groups = frame.groupby("key")["value"]
figure, axes = plt.subplots()
lines = axes.plot(array[0])
mapped = np.memmap("mapped.npy", dtype=np.float64, mode="w+", shape=(1000,))
mapped[:] = 1.0

def picture():
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return hashlib.sha256(buffer.getvalue()).hexdigest()

def fingerprint():
    return (
        hashlib.sha256(array.tobytes()).hexdigest(),
        int(pd.util.hash_pandas_object(frame).sum()),
        float(groups.mean().sum()),
        float(mapped.sum()),
        picture(),
    )
before = fingerprint()
import copy
twin = copy.deepcopy(random)
expected = twin.normal(size=10).tolist()
"""

COMPUTES_ON = """
assert fingerprint() == before
assert random.normal(size=10).tolist() == expected
assert abs(np.linalg.norm(array @ array.T) - np.linalg.norm((array @ array.T).T)) < 1e-6
lines[0].set_ydata(array[1])
assert picture() != before[-1]
mapped[0] = 2.0
mapped.flush()
print("same", plt.fignum_exists(figure.number))
"""

WIDGETS = """
import ipywidgets
slider = ipywidgets.IntSlider(value=3)
heard = []
slider.observe(lambda change: heard.append(change.new), "value")
print(slider.comm.comm_id)
"""

COUNTS_ON = """
import os, time
count = 0
while not os.path.exists("enough"):
    count += 1
    with open("count", "w") as file:
        file.write(str(count))
    time.sleep(0.01)
"""

CLIENT = """
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file="from-terminal.json")
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=30)

def ask(expression):
    answer = client.execute_interactive(
        "", user_expressions={"it": expression}, timeout=20, store_history=False
    )
    return answer["content"]["user_expressions"]["it"]["data"]["text/plain"]

client.execute_interactive("import os; secret = 42", timeout=20)
pid = ask("os.getpid()")
"""

EDITOR = """
import curses
def main(screen):
    curses.raw()
    text = ""
    while True:
        screen.erase()
        screen.addstr(0, 0, "EDITING " + text)
        screen.refresh()
        key = screen.get_wch()
        if key == "\\x13":
            open("edited", "w").write(text)
            screen.addstr(1, 0, f"SAVED {len(text)}")
            screen.refresh()
            screen.get_wch()
        else:
            text += key
curses.wrapper(main)
"""
