"""Jupyter Server extension that runs inside a session of a test.

`POST eight-hours` makes everything of the server look idle for eight hours. With `?until=resume` the
server then does nothing at all until its supervisor announces a resume: it is frozen in between, and
the first thing it does afterwards are its overdue cullers. `GET eight-hours` tells how many seconds'
beats of its event loop have passed.
"""

import os
import time
from datetime import UTC, datetime, timedelta

from jupyter_server.base.handlers import APIHandler
from tornado.ioloop import PeriodicCallback

HOME = os.path.expanduser("~")
RESUME = "/run/hubernate/resume.json"


class Handler(APIHandler):
    _track_activity = False

    def initialize(self, beats):
        self.beats = beats

    def check_xsrf_cookie(self):
        return

    def get(self):
        self.finish({"beats": len(self.beats)})

    def post(self):
        age(self.settings)
        if self.get_argument("until", "") == "resume":
            open(f"{HOME}/aged", "w").close()
            while not os.path.exists(RESUME):
                time.sleep(0.01)
        self.finish({})


def age(settings):
    then = datetime.now(UTC) - timedelta(hours=8)
    kernels = settings["kernel_manager"]
    for kernel_id in kernels.list_kernel_ids():
        kernels.get_kernel(kernel_id).last_activity = then
    for terminal in settings["terminal_manager"].terminals.values():
        terminal.last_activity = then
    for name in ("api_last_activity", "kernel_last_activity", "terminal_last_activity"):
        settings[name] = then


def _jupyter_server_extension_points():
    return [{"module": "eight_hours"}]


def _load_jupyter_server_extension(app):
    beats = []
    app.web_app.add_handlers(".*$", [("/eight-hours", Handler, {"beats": beats})])
    PeriodicCallback(lambda: beats.append(None), 1000).start()
