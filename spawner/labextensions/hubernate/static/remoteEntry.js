// The session's state in JupyterLab's status bar. Written by hand and served as it is: a module
// federation container needs no build, only `init` (JupyterLab's shared modules) and `get`.
(function () {
  "use strict";

  const FAST = 1000; // ms between two looks while memory arrives, or after a change
  const AWAY = 5000; // while the session does not answer
  const SLOW = 20000; // otherwise; a hidden page never looks
  const LIVELY = 10000; // how long after a change it looks often

  const NOTHING = { filling: null, suspend: {}, resumed_at: null, notes: [] };

  const STYLE = `
    .hubernate-state { border: 0; padding: 0 8px; height: 100%; background: none; cursor: pointer;
      color: var(--jp-ui-font-color1); font: inherit; white-space: nowrap; max-width: 32em;
      overflow: hidden; text-overflow: ellipsis; }
    .hubernate-state:hover, .hubernate-state:focus-visible { background: var(--jp-layout-color3); }
    .hubernate-state:focus-visible { outline: 1px solid var(--jp-ui-font-color1); outline-offset: -1px; }
    .hubernate-details { max-width: 44em; } .hubernate-details p { margin: 0 0 0.6em; }`;

  let shared = {};

  async function core(name) {
    const versions = Object.values(shared[name] || {});
    const chosen = versions.find((each) => each.loaded) || versions[0];
    if (!chosen) throw new Error(`this JupyterLab does not share ${name}`);
    return (await chosen.get())();
  }

  // What the status bar says in a word, and all that there is to say. Answers of the server are plain
  // text and never become HTML.
  function words(state) {
    if (state.missing) {
      return ["Session not running", ["The server does not answer. If the session was suspended, your " +
        "work is safe: open it from the Hub's home page."]];
    }
    const told = [];
    let label = "Hubernate";
    if (state.filling) {
      const share = state.filling.percent === null ? "" : ` ${state.filling.percent} %`;
      label = `Memory arriving${share}`;
      told.push(`The session is back and can be used; its memory is still arriving${share && ` (${share.trim()})`}. ` +
        "A cell may wait for what it needs.");
      if (state.filling.trouble) {
        label = `\u26a0 ${label}: waiting`;
        told.push(`No more comes now: ${state.filling.trouble.replace(/\.$/, "")}. ` +
          "It goes on by itself; nothing is lost.");
      }
    } else if (state.suspend.can === false) {
      label = "Cannot be suspended";
    }
    if (state.suspend.sentence) told.push(state.suspend.sentence);
    if (state.resumed_at !== null && state.notes.length) {
      const when = new Date(state.resumed_at * 1000).toLocaleString();
      told.push(`What was not as before when it came back (${when}):`, ...state.notes);
    }
    return [label, told.length ? told : ["Nothing special is known of this session."]];
  }

  class Watch {
    constructor(show, read) {
      this.show = show;
      this.read = read;
      this.last = "";
      this.livelyUntil = 0;
      document.addEventListener("visibilitychange", () => this.look());
    }

    async look() {
      clearTimeout(this.timer);
      if (document.hidden || this.busy) return;
      this.busy = true;
      const state = await this.read();
      this.busy = false;
      if (state === null) return; // this server knows nothing of states
      const news = JSON.stringify(state);
      if (state && news !== this.last) {
        this.last = news;
        this.livelyUntil = Date.now() + LIVELY;
        this.show(state);
      }
      this.timer = setTimeout(() => this.look(), this.pause(state));
    }

    pause(state) {
      if (state && (state.filling || (!state.missing && Date.now() < this.livelyUntil))) return FAST;
      return state && state.missing ? AWAY : SLOW;
    }
  }

  async function plugin() {
    const [{ IStatusBar }, { Widget }, { Dialog, Notification, showDialog }, { ServerConnection }] =
      await Promise.all(["@jupyterlab/statusbar", "@lumino/widgets", "@jupyterlab/apputils",
        "@jupyterlab/services"].map(core));

    // null: there is nothing to ask here; undefined: nothing new. A session that is away is a state too.
    async function read(settings) {
      const url = `${settings.baseUrl}hubernate/status`;
      const answer = await ServerConnection.makeRequest(url, {}, settings).catch(() => ({ status: 503 }));
      if (answer.status === 404) return null;
      if (answer.status === 424 || answer.status >= 500) return { missing: true };
      if (!answer.ok) return undefined;
      // A server that was frozen long ago may say less than the one that this file was written for.
      return answer.json().then((told) => ({ ...NOTHING, ...told })).catch(() => undefined);
    }

    function details(told) {
      const node = document.createElement("div");
      node.className = "hubernate-details";
      node.append(...told.map((each) => {
        const line = document.createElement("p");
        line.textContent = each;
        return line;
      }));
      showDialog({ title: "This session", body: new Widget({ node }), buttons: [Dialog.okButton({ label: "Close" })] });
    }

    // Once for each resume in which something changed, also over reloads of the page.
    function announce(state, open) {
      const key = "hubernate:announced";
      if (state.missing || !state.notes.length || localStorage.getItem(key) === String(state.resumed_at)) return;
      localStorage.setItem(key, String(state.resumed_at));
      const what = state.notes.length === 1 ? "one thing is" : `${state.notes.length} things are`;
      Notification.info(`This session came back; ${what} not as before.`,
        { autoClose: false, actions: [{ label: "Show", callback: open }] });
    }

    return {
      id: "hubernate:session-state",
      description: "Shows the state of a Hubernate session in the status bar.",
      autoStart: true,
      requires: [IStatusBar],
      activate: (app, statusBar) => {
        const style = document.createElement("style");
        style.textContent = STYLE;
        document.head.append(style);
        const button = document.createElement("button");
        button.type = "button";
        button.className = "hubernate-state";
        let told = [];
        button.addEventListener("click", () => details(told));
        const item = new Widget();
        item.node.append(button);
        let placed = false;

        function show(state) {
          const [label, lines] = words(state);
          told = lines;
          button.textContent = label;
          button.title = lines.join("\n");
          if (!placed) statusBar.registerStatusItem("hubernate:session-state", { item, align: "right", rank: 100 });
          placed = true;
          announce(state, () => details(told));
        }
        app.started.then(() => new Watch(show, () => read(app.serviceManager.serverSettings)).look());
      }
    };
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB.hubernate = {
    init: (scope) => { shared = scope; },
    get: async () => { const made = await plugin(); return () => made; }
  };
})();
