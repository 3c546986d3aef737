// Why our verdict may differ from Node's. The first entry of the table whose side and test fit names the difference. A test
// looks at the message itself (or at what Node made of it), never at our refusal alone: an error code of ours that
// fires for a wrong reason leaves the difference unnamed, and the run fails.

const ERRORS = ['OK', 'BAD_LINE', 'BAD_METHOD', 'BAD_TARGET', 'BAD_VERSION', 'BAD_STATUS', 'BAD_FIELD', 'BAD_HOST', 'BAD_LENGTH',
	'BAD_ENCODING', 'HEAD_TOO_LARGE', 'TOO_MANY_FIELDS', 'BAD_CHUNK', 'BODY_TOO_LARGE', 'BODY_CUT'];   // enum http_error
const HOST = /^([A-Za-z0-9!$%&'()*+,\-.;=_~]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?$/;
const NODE_METHODS = new Set(process.binding('http_parser').methods);
const KNOWN_ELSEWHERE = new Set(['PRI', 'DESCRIBE', 'ANNOUNCE', 'SETUP', 'PLAY', 'PAUSE', 'TEARDOWN', 'GET_PARAMETER', 'SET_PARAMETER',
	'REDIRECT', 'RECORD', 'FLUSH']);

const unhex = (s) => (s === '-' ? '' : Buffer.from(s, 'hex').toString('latin1'));

function hostOk(s) {
	const m = HOST.exec(s);
	return m !== null && s.length <= 255 && (!m[2] || Number(m[2].slice(1)) <= 65535);
}

export class Facts {
	constructor({ kind, text }, ours, theirs) {
		Object.assign(this, { kind, text, ours, theirs });
		this.request = kind === 0;
		this.error = ours.startsWith('no ') ? ERRORS[Number(ours.slice(3))] : null;
		this.nodeError = theirs.startsWith('no ') ? theirs.slice(3) : null;
		this.firstLine = /^[\r\n]*([^\r\n]*)/.exec(text)[1];
		const ok = theirs.startsWith('ok') ? theirs : ours.startsWith('ok') ? ours : null;
		const [, version, word, target, fields, body, rest] = ok ? ok.split(' ') : [];
		Object.assign(this, { version, word, body, rest });
		this.target = ok ? unhex(target) : '';
		this.fields = ok && fields !== '-' ? fields.split(',').map((f) => f.split('=').map(unhex)) : [];
		// As on the wire: Node's target is given in origin-form.
		this.wireTarget = /^\S+ +(\S*)/.exec(this.firstLine)?.[1] ?? '';
		const end = /\r?\n\r?\n/.exec(text);
		this.headLength = end ? end.index + end[0].length : text.length;
		this.bodyText = text.slice(this.headLength);
	}
	values(name) {
		return this.fields.filter(([n]) => n.toLowerCase() === name).map(([, v]) => v);
	}
	get coding() {
		return this.values('transfer-encoding');
	}
	get absolute() {
		return /^([A-Za-z][A-Za-z0-9+.-]*):\/\/([^/?#]*)/.exec(this.wireTarget);
	}
}

const host = (f) => f.request && f.error === 'BAD_HOST';
const target = (f) => f.request && f.error === 'BAD_TARGET';
const line = (f) => f.error === 'BAD_LINE';
const coding = (f) => f.error === 'BAD_ENCODING';
const chunk = (f) => f.error === 'BAD_CHUNK' && f.coding.length > 0;

export const reasons = [
	// The head, first line.
	{ name: 'empty-line-first', side: 'ours', when: (f) => line(f) && /^[\r\n]/.test(f.text),
	  why: 'Line ends before the first line. RFC 9112 2.2 asks servers to skip an empty line that old clients sent; a strict reading has exactly one place where a message begins.' },
	{ name: 'bare-cr', side: 'ours', when: (f) => /\r(?!\n)/.test(f.text.slice(0, f.headLength)) && (f.error || f.ours === 'more'),
	  why: 'A CR without LF in the head, which Node takes for a line end in a status line.' },
	{ name: 'no-version', side: 'ours', when: (f) => f.request && line(f) && f.version === '0.9' && !/ HTTP\/0\.9$/.test(f.firstLine),
	  why: 'A request line without version (HTTP/0.9), which Node takes for a whole head with fields.' },
	{ name: 'spaces-in-line', side: 'ours', when: (f) => f.request && line(f) && /^\S+( {2,}\S+ | +\S+ {2,})HTTP/.test(f.firstLine),
	  why: 'More than one blank between the parts of the request line; RFC 9112 3 has exactly one.' },
	{ name: 'other-protocol', side: 'ours', when: (f) => line(f) && /(^| )(RTSP|ICE)\/\d\.\d/.test(f.firstLine),
	  why: 'RTSP and ICE messages; Node parses them as if they were HTTP.' },
	{ name: 'reason-bytes', side: 'ours',
	  when: (f) => !f.request && line(f) && /^HTTP\/\d\.\d \d{3}[^\r\n]*[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/.test(f.firstLine),
	  why: 'Control bytes in the reason phrase; RFC 9112 4 forbids them.' },
	{ name: 'version', side: 'ours', when: (f) => f.error === 'BAD_VERSION' && /HTTP\/(0\.9|2\.0)/.test(f.firstLine),
	  why: 'HTTP/0.9 and HTTP/2.0 in a first line. Node accepts both; we speak 1.0 and 1.1.' },
	{ name: 'status-range', side: 'ours', when: (f) => f.error === 'BAD_STATUS' && (Number(f.word) < 100 || Number(f.word) > 599),
	  why: 'A status code outside of 100 to 599 (RFC 9110 15).' },
	// Targets.
	{ name: 'target-fragment', side: 'ours', when: (f) => target(f) && f.wireTarget.includes('#'),
	  why: 'A fragment is no part of a request target (RFC 9112 3.2).' },
	{ name: 'target-connect', side: 'ours', when: (f) => target(f) && f.word === 'CONNECT' && !/^(\[[0-9A-Fa-f:.]+\]|[^/:?@[\]]+):\d{1,5}$/.test(f.wireTarget),
	  why: 'CONNECT takes host:port and nothing else (RFC 9112 3.2.3).' },
	{ name: 'target-scheme', side: 'ours', when: (f) => target(f) && f.absolute && !/^https?$/i.test(f.absolute[1]),
	  why: 'An absolute target of another scheme than http and https.' },
	{ name: 'target-authority', side: 'ours', when: (f) => target(f) && f.absolute && !hostOk(f.absolute[2]),
	  why: 'An absolute target without a host, with user information or with a malformed host or port.' },
	{ name: 'target-star', side: 'ours', when: (f) => target(f) && f.wireTarget.startsWith('*') && (f.wireTarget !== '*' || f.word !== 'OPTIONS'),
	  why: '"*" with another method than OPTIONS, or with something behind it (RFC 9112 3.2.4).' },
	// Fields.
	{ name: 'host-missing', side: 'ours', when: (f) => host(f) && f.values('host').length === 0 && f.version === '1',
	  why: 'HTTP/1.1 without Host (RFC 9112 3.2). Node leaves this to the server above its parser, which refuses it, too.' },
	{ name: 'host-twice', side: 'ours', when: (f) => host(f) && f.values('host').length > 1,
	  why: 'More than one Host (RFC 9112 3.2). Node\'s server takes the first.' },
	{ name: 'host-malformed', side: 'ours', when: (f) => host(f) && f.values('host').length === 1 && !hostOk(f.values('host')[0]),
	  why: 'An empty Host or one that is not host[:port]. Requests are routed by it.' },
	{ name: 'host-differs', side: 'ours',
	  when: (f) => host(f) && f.absolute && f.values('host').length === 1 && f.absolute[2].toLowerCase() !== f.values('host')[0].toLowerCase(),
	  why: 'The host of an absolute target and the Host field differ: whoever reads the other one routes elsewhere.' },
	{ name: 'fields-count', side: 'ours', when: (f) => f.error === 'TOO_MANY_FIELDS' && f.fields.length > 100,
	  why: 'More than 100 fields. Node\'s own limit is 2000, applied above its parser.' },
	{ name: 'head-size', side: 'ours', when: (f) => f.error === 'HEAD_TOO_LARGE' && f.headLength > 32768,
	  why: 'A head of more than 32 KiB. Node\'s limit (16 KiB) is lifted in this comparison.' },
	// Framing.
	{ name: 'length-connect', side: 'ours', when: (f) => f.error === 'BAD_LENGTH' && f.request && f.word === 'CONNECT' && f.values('content-length').length > 0,
	  why: 'CONNECT with Content-Length: it has no body (RFC 9110 9.3.6), yet somebody may read one.' },
	{ name: 'coding-connect', side: 'ours', when: (f) => f.error === 'BAD_LENGTH' && f.request && f.word === 'CONNECT' && f.coding.length > 0,
	  why: 'CONNECT with Transfer-Encoding, likewise.' },
	{ name: 'length-range', side: 'ours',
	  when: (f) => f.error === 'BAD_LENGTH' && f.values('content-length').some((v) => /^\d+$/.test(v) && BigInt(v) > 9223372036854775807n),
	  why: 'Content-Length above 2^63 - 1. Node counts to 2^64 - 1.' },
	{ name: 'coding-http10', side: 'ours', when: (f) => coding(f) && f.version === '0' && f.coding.length > 0,
	  why: 'Transfer-Encoding in HTTP/1.0 (RFC 9112 6.1: the framing is to be taken as faulty).' },
	{ name: 'coding-twice', side: 'ours', when: (f) => coding(f) && f.coding.length > 1,
	  why: 'Two Transfer-Encoding fields.' },
	{ name: 'coding-case', side: 'ours', when: (f) => coding(f) && f.coding.length === 1 && f.coding[0] !== 'chunked' && /^chunked$/i.test(f.coding[0]),
	  why: '"chunked" in other letters. The name is case-insensitive, but nobody writes it so, and a peer that compares bytes sees no body.' },
	{ name: 'coding-other', side: 'ours', when: (f) => coding(f) && f.coding.length === 1 && !/^chunked$/i.test(f.coding[0]),
	  why: 'Any transfer coding but "chunked" alone. We answer 501 (RFC 9112 6.1); Node reads lists that end in chunked, and answers with other codings until the connection closes.' },
	{ name: 'coding-and-length', side: 'ours', when: (f) => f.error === 'BAD_LENGTH' && f.coding.length > 0 && f.values('content-length').length > 0,
	  why: 'Transfer-Encoding beside Content-Length. Node refuses this, too, but not where the coding is empty.' },
	{ name: 'framing-tab', side: 'ours',
	  when: (f) => f.error === 'BAD_FIELD' && /\n(transfer-encoding|content-length):[^\r\n]*\t/i.test(f.text),
	  why: 'A tab beside the value of a framing field. RFC 9110 5.6.3 has it as white space, but Node reads "\\tchunked" in an answer as an unknown coding, hence until the connection closes.' },
	// Chunks.
	{ name: 'chunk-digits', side: 'ours', when: (f) => chunk(f) && /(^|\n)[0-9A-Fa-f]{17,}/.test(f.bodyText),
	  why: 'A chunk size of more than 16 digits; Node skips any number of leading zeros.' },
	{ name: 'chunk-line', side: 'ours', when: (f) => chunk(f) && /(^|\n)[0-9A-Fa-f]{1,16};[^\r\n]{237,}/.test(f.bodyText),
	  why: 'A chunk line of more than 256 bytes. Node\'s limit for extensions is 16 KiB.' },
	{ name: 'trailer-size', side: 'ours', when: (f) => chunk(f) && /\n0[^\n]*\r\n(.*\r\n)*?[^\r\n]{8192,}\r\n/.test('\n' + f.bodyText),
	  why: 'Trailers of more than 8 KiB.' },
	{ name: 'trailer-name', side: 'ours', when: (f) => chunk(f) && /\r\n(host|trailer|content-length|transfer-encoding):/i.test('\r\n' + f.bodyText),
	  why: 'Trailers that say where a message goes or ends (RFC 9110 6.5.1). Node refuses only those of framing.' },
	{ name: 'chunk-ext', side: 'ours', when: (f) => chunk(f) && /(^|\n)[0-9A-Fa-f]+(;[^\r\n]*)?(;[=;"\r]|=[;\r]|=[^";\r\n]+")/.test(f.bodyText),
	  why: 'A chunk extension without a name, with "=" and no value, or with a quote inside of a value (RFC 9112 7.1.1).' },
	{ name: 'chunk-connect', side: 'ours', when: (f) => f.kind === 3 && (chunk(f) || f.ours === 'more' || f.error === 'BODY_TOO_LARGE') && Number(f.word) >= 300,
	  why: 'A refusal of CONNECT whose body is malformed or not whole: see connect-refused.' },

	// Node is stricter.
	{ name: 'method-unknown', side: 'node', when: (f) => f.nodeError === 'HPE_INVALID_METHOD' && !NODE_METHODS.has(f.word) && /^[A-Z][A-Z0-9_-]{0,31}$/.test(f.word),
	  why: 'Node has a list of methods. For us a method is a token; the handler or the user\'s server answers what it knows.' },
	{ name: 'method-elsewhere', side: 'node', when: (f) => /^HPE_INVALID_(CONSTANT|VERSION)$/.test(f.nodeError) && KNOWN_ELSEWHERE.has(f.word),
	  why: 'Methods that Node knows from RTSP and HTTP/2 and refuses in HTTP/1.1.' },

	// Both accept, with different results.
	{ name: 'connect-refused', side: 'both', when: (f) => f.kind === 3 && Number(f.word) >= 300 && f.theirs.split(' ')[5] === '-',
	  why: 'An answer to CONNECT that is no 2xx has a body like any other (RFC 9112 6.3). Node\'s client takes each answer to CONNECT for the start of a tunnel.' },
];
