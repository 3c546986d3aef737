// The verdict of the HTTP parser inside Node (llhttp, no lenient flag) about one message, in the form that driver.c prints:
// "ok ...", "no HPE_...", "more". The input is fed byte by byte, so that the end of the message is known exactly.

const { HTTPParser } = process.binding('http_parser');
const HEAD_MAX = 1 << 24;       // the limit of Node's own would hide the differences of grammar

const hex = (s) => Buffer.from(s, 'latin1').toString('hex') || '-';

// What http.Server and http.request answer to the parser: 0 = read the body, 1 = there is none, 2 = none, and no more HTTP.
function skipBody(kind, status) {
	if (kind === 0)
		return 0;
	if (kind === 3)
		return 2;
	return kind === 2 || (status < 200 && status !== 101) ? 1 : 0;
}

export function judge({ kind, text }) {
	const bytes = Buffer.from(text, 'latin1');
	const parser = new HTTPParser();
	const m = { fields: [], url: '', body: [], head: false, done: false };
	const status = [];

	parser.initialize(kind === 0 ? HTTPParser.REQUEST : HTTPParser.RESPONSE, {}, HEAD_MAX, HTTPParser.kLenientNone);
	parser[HTTPParser.kOnHeaders] = (fields, url) => {
		if (m.head)             // trailers
			return;
		m.fields.push(...fields);
		m.url += url;
	};
	parser[HTTPParser.kOnHeadersComplete] = (major, minor, fields, method, url, code) => {
		m.head = true;
		m.major = major;
		m.minor = minor;
		m.method = method;
		m.status = code;
		m.fields.push(...(fields ?? []));
		m.url += url ?? '';
		return skipBody(kind, code);
	};
	parser[HTTPParser.kOnBody] = (b) => { m.body.push(Buffer.from(b)); };
	parser[HTTPParser.kOnMessageComplete] = () => { m.done = true; };

	let at = 0, r;
	while (at < bytes.length && !m.done) {
		r = parser.execute(bytes.subarray(at, ++at));
		if (r instanceof Error && !m.done)
			return 'no ' + r.code;
	}
	if (!m.done) {
		r = parser.finish();
		if (!m.done)
			return 'more';
	}
	parser.close?.();
	return verdict(kind, m, bytes.length - at);
}

function verdict(kind, m, rest) {
	const fields = [];
	for (let i = 0; i < m.fields.length; i += 2)
		fields.push(hex(m.fields[i]) + '=' + hex(m.fields[i + 1]));
	return ['ok', m.major === 1 ? m.minor : `${m.major}.${m.minor}`, kind === 0 ? METHODS[m.method] : m.status,
		kind === 0 ? hex(originForm(m.url)) : '-', fields.join(',') || '-', Buffer.concat(m.body).toString('hex') || '-', rest].join(' ');
}

// We give absolute-form targets as origin-form, Node as they came.
function originForm(url) {
	const m = /^https?:\/\/[^/?]*(.*)$/i.exec(url);
	return m ? (m[1].startsWith('/') ? m[1] : '/' + m[1]) : url;
}

const METHODS = process.binding('http_parser').allMethods;
