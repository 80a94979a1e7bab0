// The connection to the daemon: one stream of events, and single reads.

/** Without even a heartbeat (every 5 s) for this long, the connection counts as lost. */
const SILENCE_MS = 15000;
const LONGEST_WAIT_MS = 10000;

const TOKEN = "wattune-token";

/** Returns a storage of the browser, or one of this page alone if the browser denies access to site data. */
const storageOf = (name) => {
  const kept = new Map();
  const own = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
  try {
    return window[name] ?? own;
  } catch {
    return own;
  }
};

const session = storageOf("sessionStorage");
const lasting = storageOf("localStorage");

/** Sends a request. All requests go through here, and it only reads. */
const ask = (path, signal) => {
  const secret = session.getItem(TOKEN);
  const headers = secret ? { authorization: `Bearer ${secret}` } : {};
  return fetch(path, { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
};

/** Returns the answer of a route; fails with the daemon's error message. */
const read = async (path) => {
  const answer = await ask(path);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail ?? `status ${answer.status}`);
  return body;
};

/** Splits received text into complete events and the rest. */
const splitEvents = (text) => {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const events = [];
  for (const block of blocks) {
    const lines = block.split("\n");
    const field = (name) => lines.filter((l) => l.startsWith(`${name}:`)).map((l) => l.slice(name.length + 1).trimStart());
    const data = field("data").join("\n");
    if (data) events.push({ event: field("event")[0] ?? "message", data: JSON.parse(data) });
  }
  return [events, rest];
};

/**
 * Listens forever. `onEvent` gets each event, `onState` the state of the connection with a reason: "live", "lost" or "locked"
 * (the daemon requires a token). Returns a function that reconnects at once.
 */
const listen = (onEvent, onState) => {
  let failures = 0;
  let hurry = () => {};
  const once = async () => {
    const stop = new AbortController();
    let watchdog = setTimeout(() => stop.abort(), SILENCE_MS);
    try {
      const answer = await ask("/v1/events", stop.signal);
      if (answer.status === 401) return onState("locked", "");
      if (!answer.ok) throw new Error((await answer.json()).detail ?? `status ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Error("the daemon ended the connection");
        clearTimeout(watchdog);
        watchdog = setTimeout(() => stop.abort(), SILENCE_MS);
        failures = 0;
        let events;
        [events, text] = splitEvents(text + value);
        onState("live", "");
        for (const event of events) onEvent(event);
      }
    } catch (error) {
      const silent = stop.signal.aborted;
      onState("lost", silent ? "the daemon is silent" : error instanceof TypeError ? "the daemon cannot be reached" : error.message);
    } finally {
      clearTimeout(watchdog);
      stop.abort();
    }
  };
  const forever = async () => {
    for (;;) {
      await once();
      failures += 1;
      const wait = Math.min(500 * 2 ** failures, LONGEST_WAIT_MS);
      await new Promise((resolve) => {
        hurry = resolve;
        setTimeout(resolve, wait);
      });
    }
  };
  forever();
  return () => hurry();
};
