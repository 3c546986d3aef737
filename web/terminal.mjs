/*
 * A shell of a sandbox in a browser. docs/terminal.md says what goes over the WebSocket.
 *
 * What comes from a sandbox is bytes for the terminal emulator; what comes from the server as text
 * goes into the page as text nodes. Nothing is ever made into markup or code.
 *
 * The key, the shell's name and a copy of the screen stay in sessionStorage: they are this tab's
 * alone, survive a reload and end with the tab.
 */

const WINDOW = 262144;          /* output that may be on its way: what is not drawn is not acknowledged */
const INPUT_AHEAD = 65536;      /* input on its way; the rest waits here */
const INPUT_PIECE = 16384;
const INPUT_MAX = 16 << 20;     /* of one paste and all that waits before it */
const SCROLLBACK = 5000;
const KEPT_LINES = 500;         /* of the scrollback, over a reload */
const KEPT_MAX = 400000;
const PING_MS = 20000;
const SILENT_MS = 50000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15000];
const PROTOCOL = "space.terminal.v1";

const at = (id) => document.getElementById(id);

/*
 * xterm.js writes its colours into <style> elements, and those of 24 bits into style attributes; the
 * policy of this page (style-src 'self') refuses both. What a script sets through the object model is
 * no inline style: so each such element hands its text to a style sheet object, and each such
 * attribute is set as properties.
 */
function styleElement(real) {
	const element = real("template");        /* one that shows nothing and holds its place */
	const sheet = new CSSStyleSheet();
	const remove = element.remove.bind(element);
	let text = "";

	document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
	Object.defineProperty(element, "textContent", {
		get: () => text,
		set: (value) => { text = value; sheet.replaceSync(value); },
	});
	element.remove = () => {
		document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
		remove();
	};
	return element;
}

const setAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
	if (name === "style")
		this.style.cssText = value;
	else
		setAttribute.call(this, name, value);
};

const createElement = document.createElement.bind(document);
document.createElement = (name, options) =>
	name === "style" ? styleElement(createElement) : createElement(name, options);

const { Terminal } = await import("/ui/xterm.mjs");
const { FitAddon } = await import("/ui/addon-fit.mjs");
const { SerializeAddon } = await import("/ui/addon-serialize.mjs");

/* ---- what this tab keeps ---- */

const sandbox = new URLSearchParams(location.search).get("sandbox") ?? "";
const kept = {
	get: (name) => sessionStorage.getItem(`space.${name}`),
	set: (name, value) => {
		try {
			sessionStorage.setItem(`space.${name}`, value);
		} catch {
			sessionStorage.removeItem(`space.${name}`);     /* full: better none than half */
		}
	},
	drop: (name) => sessionStorage.removeItem(`space.${name}`),
};
const SESSION = `session.${sandbox}`, SCREEN = `screen.${sandbox}`;

/* A ticket in the address is used once; the address is cleared of it at once. */
let firstTicket = new URLSearchParams(location.hash.slice(1)).get("ticket");
if (location.hash)
	history.replaceState(null, "", location.pathname + location.search);

/* ---- the terminal ---- */

const term = new Terminal({
	scrollback: SCROLLBACK,
	fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace',
	fontSize: 14,
	cursorBlink: true,
	theme: { background: "#16181d", foreground: "#d5d8df" },
	/* Links that a program prints open only when the user says so, without a way back to this page. */
	linkHandler: {
		allowNonHttpProtocols: false,
		activate(event, uri) {
			if (/^https?:\/\//.test(uri) && confirm(`Open ${uri}?`))
				window.open(uri, "_blank", "noopener,noreferrer");
		},
	},
});
const fit = new FitAddon();
const serialize = new SerializeAddon();

term.loadAddon(fit);
term.loadAddon(serialize);
term.open(at("terminal"));
term.onTitleChange((title) => { document.title = title ? `${title} – ${sandbox}` : `${sandbox} – SPACE terminal`; });
/* The keys that terminals use; Ctrl-C stays the interrupt. Ctrl-Shift-V and Shift-Insert paste by themselves. */
term.attachCustomKeyEventHandler((e) => {
	const copy = e.type === "keydown" && ((e.ctrlKey && e.shiftKey && e.code === "KeyC") || (e.ctrlKey && e.code === "Insert"));
	const paste = (e.ctrlKey && e.shiftKey && e.code === "KeyV") || (e.shiftKey && e.code === "Insert");

	if (copy && term.hasSelection()) {
		e.preventDefault();
		navigator.clipboard?.writeText(term.getSelection());
	}
	return !copy && !paste;
});

function show(text, bad = false) {
	at("status").textContent = text;
	at("status").classList.toggle("bad", bad);
}

function offer({ again = false, fresh = false } = {}) {
	at("again").hidden = !again;
	at("fresh").hidden = !fresh;
	at("forget").hidden = !kept.get("key");
}

/* ---- one connection ---- */

let link = null;                /* of the present WebSocket; what others still say is not heard */
let haveScreen = false;         /* what the shell showed before is in this page */
let retries = 0;
let retryTimer = 0;

class Link {
	constructor(socket, attaching) {
		this.socket = socket;
		this.attaching = attaching;
		this.attached = false;
		this.waiting = [];          /* input, as arrays of bytes */
		this.waitingBytes = 0;
		this.ahead = 0;             /* sent, not taken yet */
		this.unacked = 0;
		this.error = null;
		this.exit = null;
		this.heard = performance.now();
		this.pinger = setInterval(() => this.ping(), PING_MS);
	}

	say(message) {
		if (this.socket.readyState === WebSocket.OPEN)
			this.socket.send(JSON.stringify(message));
	}

	ping() {
		if (performance.now() - this.heard > SILENT_MS)
			this.socket.close(4000, "silent");
		else
			this.say({ type: "ping" });
	}

	input(bytes) {
		if (this.waitingBytes + bytes.length > INPUT_MAX) {
			show("That is too much to paste at once.", true);
			return;
		}
		for (let i = 0; i < bytes.length; i += INPUT_PIECE)
			this.waiting.push(bytes.subarray(i, i + INPUT_PIECE));
		this.waitingBytes += bytes.length;
		this.pump();
	}

	pump() {
		while (this.attached && this.waiting.length && this.ahead < INPUT_AHEAD) {
			const piece = this.waiting.shift();

			this.ahead += piece.length;
			this.waitingBytes -= piece.length;
			this.socket.send(piece);
		}
	}

	/* What was drawn is acknowledged, not each piece on its own. */
	drawn(n) {
		this.unacked += n;
		if (this.unacked < WINDOW / 8)
			return;
		this.say({ type: "ack", bytes: this.unacked });
		this.unacked = 0;
	}

	text(m) {
		if (m.type === "attached") {
			this.attached = true;
			retries = 0;
			if (m.session)
				kept.set(SESSION, m.session);
			show("connected");
			offer();
			/* A program that owns the screen draws it anew; a shell's screen is our copy. */
			if (this.attaching && (term.buffer.active.type === "alternate" || !haveScreen))
				this.say({ type: "redraw" });
			haveScreen = true;
			this.pump();
			term.focus();
		} else if (m.type === "taken") {
			this.ahead -= m.bytes;
			this.pump();
		} else if (m.type === "exit") {
			this.exit = m.signal ? `by ${m.signal}` : `with code ${m.code}`;
		} else if (m.type === "error") {
			this.error = m;
			if (m.code === "input-lost")
				show(`Input was lost: ${m.message}`, true);
		}
	}

	message(data) {
		this.heard = performance.now();
		if (typeof data === "string") {
			this.text(JSON.parse(data));
		} else {
			const bytes = new Uint8Array(data);
			term.write(bytes, () => this.drawn(bytes.length));
		}
	}

	closed(code) {
		clearInterval(this.pinger);
		ended(this, code);
	}
}

/* After a close: what to tell, and what may be tried. */
function ended(old, code) {
	if (old.exit !== null) {
		kept.drop(SESSION);
		show(`The shell ended ${old.exit}.`);
		offer({ fresh: true });
	} else if (old.error?.code === "shell-gone") {
		kept.drop(SESSION);
		show("That shell is not there any more.", true);
		offer({ fresh: true });
	} else if (code === 4409) {
		show(old.error.message, true);
		offer({ again: true });
	} else if (code === 4410) {
		kept.drop(SESSION);
		show(old.error.message, true);
		offer({ again: true });
	} else if (old.error && code !== 4503 && code !== 4429) {
		show(old.error.message || "The server ended the connection.", true);
		offer({ again: true, fresh: true });
	} else {
		again(old.error?.message ?? "The connection was lost.");
	}
}

function again(why) {
	if (retries >= RETRY_MS.length) {
		show(why, true);
		offer({ again: true });
		return;
	}
	show(`${why} Trying again…`, true);
	offer({ again: true });
	retryTimer = setTimeout(connect, RETRY_MS[retries++]);
}

/* ---- getting in ---- */

class Refused extends Error {
	constructor(message, status) {
		super(message);
		this.status = status;
	}
}

async function newTicket() {
	const path = `/v1/sandboxes/${encodeURIComponent(sandbox)}/terminal-tickets`;
	const answer = await fetch(path, { method: "POST", headers: { "X-API-Key": kept.get("key") }, cache: "no-store" });
	const body = await answer.json().catch(() => ({}));

	if (!answer.ok)
		throw new Refused(body.message ?? body.detail ?? `The server answered ${answer.status}.`, answer.status);
	return body.ticket;
}

function askKey(why) {
	at("ask-sandbox").value = sandbox;
	if (why)
		at("ask-why").textContent = why;
	at("ask").hidden = false;
	at("terminal").hidden = true;
	at(sandbox ? "ask-key" : "ask-sandbox").focus();
	show("");
	offer();
}

async function connect() {
	clearTimeout(retryTimer);
	link?.socket.close(1000);
	link = null;
	if (!sandbox || (!firstTicket && !kept.get("key"))) {
		askKey();
		return;
	}
	at("ask").hidden = true;
	at("terminal").hidden = false;
	fit.fit();
	show("connecting…");
	try {
		const ticket = firstTicket ?? await newTicket();

		firstTicket = null;
		openSocket(ticket);
	} catch (e) {
		if (!(e instanceof Refused)) {
			again("The server cannot be reached.");
		} else if (e.status === 401) {
			kept.drop("key");
			askKey(e.message);
		} else if (e.status === 429 || e.status >= 500) {
			again(e.message);
		} else {
			show(e.message, true);
			offer({ again: true });
		}
	}
}

function openSocket(ticket) {
	const session = kept.get(SESSION);
	const query = new URLSearchParams({ cols: term.cols, rows: term.rows, window: WINDOW });
	const base = location.origin.replace(/^http/, "ws");

	if (session)
		query.set("session", session);
	const socket = new WebSocket(`${base}/v1/sandboxes/${encodeURIComponent(sandbox)}/terminal?${query}`,
				     [PROTOCOL, `ticket.${ticket}`]);
	const mine = new Link(socket, Boolean(session));

	socket.binaryType = "arraybuffer";
	socket.onmessage = (e) => { if (link === mine) mine.message(e.data); };
	socket.onclose = (e) => {
		clearInterval(mine.pinger);
		if (link === mine)
			mine.closed(e.code);
	};
	link = mine;
}

/* ---- events ---- */

const encoder = new TextEncoder();
term.onData((text) => link?.input(encoder.encode(text)));
/* Reports of the mouse in old forms are bytes, not text. */
term.onBinary((text) => link?.input(Uint8Array.from(text, (c) => c.charCodeAt(0))));
term.onResize(({ cols, rows }) => link?.say({ type: "resize", cols, rows }));

new ResizeObserver(() => { if (!at("terminal").hidden) fit.fit(); }).observe(at("terminal"));

addEventListener("pagehide", () => {
	const screen = kept.get(SESSION) ? serialize.serialize({ scrollback: KEPT_LINES }) : "";

	if (screen && screen.length <= KEPT_MAX)
		kept.set(SCREEN, JSON.stringify({ cols: term.cols, rows: term.rows, screen }));
	else
		kept.drop(SCREEN);
});

at("again").addEventListener("click", () => { retries = 0; connect(); });
at("fresh").addEventListener("click", () => {
	kept.drop(SESSION);
	term.reset();
	retries = 0;
	connect();
});
at("forget").addEventListener("click", () => {
	kept.drop("key");
	show("The key is forgotten; this terminal stays open until the page is left.");
	offer();
});
at("ask").addEventListener("submit", (e) => {
	e.preventDefault();
	kept.set("key", at("ask-key").value.trim());
	at("ask-key").value = "";
	const wanted = at("ask-sandbox").value.trim();

	if (wanted !== sandbox)
		location.search = new URLSearchParams({ sandbox: wanted });
	else
		connect();
});

/* The last screen of this tab comes back in its own size first, then the window's counts. */
function restore() {
	const text = kept.get(SESSION) && kept.get(SCREEN);

	if (!text)
		return Promise.resolve();
	const { cols, rows, screen } = JSON.parse(text);

	kept.drop(SCREEN);
	haveScreen = true;
	term.resize(cols, rows);
	return new Promise((done) => { term.write(screen, done); });
}

at("sandbox").textContent = sandbox;
document.title = sandbox ? `${sandbox} – SPACE terminal` : "SPACE terminal";
await restore();
connect();
