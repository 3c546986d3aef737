// Seeded generator of HTTP messages: well-formed ones from a small grammar in which each part is now and then replaced by a
// tricky variant, then (for some) bytes and lines are mutated. A case is { kind, text }: kind 0 is a request, 1 to 3
// are responses to GET, HEAD and CONNECT; text is a latin1 string. On the wire to the driver: kind (1 byte), length
// (4 bytes, little-endian), bytes.

function random(seed) {
	let a = seed >>> 0;
	return () => {          // mulberry32
		a = (a + 0x6d2b79f5) >>> 0;
		let t = a;
		t = Math.imul(t ^ (t >>> 15), t | 1);
		t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
		return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
	};
}

const METHODS = ['GET', 'GET', 'GET', 'POST', 'POST', 'POST', 'PUT', 'DELETE', 'PATCH', 'HEAD', 'OPTIONS'];
const ODD_METHODS = ['CONNECT', 'TRACE', 'M-SEARCH', 'PROPFIND', 'QUERY', 'FOO', 'get', 'Get', 'G\tET', 'GET:', '', 'PRI', 'SOURCE',
	'DESCRIBE', 'X'.repeat(32), 'X'.repeat(33), 'G\x00T', 'A_B', '1GET'];
const TARGETS = ['/', '/a', '/a/b?c=d&e=%20', '/sandboxes?limit=5', '/files?path=%2Fhome%2Fuser', '/a;b=c', '/~x', '/a|b', '/a%zz'];
const ODD_TARGETS = ['*', 'a', 'a:80', '[::1]:80', 'http://a/', 'http://a', 'http://a?x', 'HTTP://a/b', 'https://a:8443/', 'http://b/',
	'http://u@a/', 'http:///x', 'http:/a', 'ftp://a/', '//a/b', '/a#b', '/\x01', '/\x7f', '/\xe4', '/a b', '', '/"<>\\^`{}', '/a\tb',
	'http://[::1]/', 'http://a#b', '/' + 'x'.repeat(3000), 'http://a:99999/', '/a\x00b', '?x', '/..//../', 'a:', ':80', 'a:b'];
const ODD_VERSIONS = ['HTTP/1.0', 'HTTP/1.0', 'HTTP/0.9', 'HTTP/1.2', 'HTTP/2.0', 'HTTP/3.0', 'HTTP/1.', 'HTTP/1', 'HTTP/11', 'http/1.1',
	'HTTP/1.1 ', ' HTTP/1.1', 'HTTP/01.1', 'HTTP/1.01', 'HTTP/1.1x', 'HTTPS/1.1', 'RTSP/1.0', 'ICE/1.0', '', 'HTTP /1.1', 'HTTP/ 1.1'];
const HOSTS = ['a', 'a', 'ex.org', 'ex.org:8080', '[::1]', '[::1]:80', '49983-abc.ex.org'];
const ODD_HOSTS = ['', 'a b', 'a/b', 'a@b', 'a:', 'a:x', 'a:99999', '[', '[]', ':80', 'a,b', 'a\tb', 'http://a', '\xe4', 'a?b', 'a:80:80'];
const FIELDS = ['Accept: */*', 'User-Agent: x/1.0 (y; z)', 'X-A: 1', 'X-B:', 'X-C:2', 'X-D:  3  ', 'Cookie: a=b; c=d', 'X-E: \xc3\xa4',
	'X-F: a\tb', 'Content-Type: application/json', 'Connection: keep-alive', 'Connection: close', 'Expect: 100-continue',
	"!#$%&'*+-.^_`|~: x", 'TE: trailers', 'Trailer: X', 'Date: now', 'X-G: \t', 'X-H: ""'];
const ODD_FIELDS = ['X-A : 1', 'X-A\t: 1', ': 1', 'X-A', ' X-A: 1', '\tX-A: 1', 'X A: 1', 'X(A): 1', 'X-\xe4: 1', 'X-A: \x01', 'X-A: \x7f',
	'X-A: a\x00b', 'X-A\x00: b', 'X-A: a\rb', 'X-A: a\nb', 'X-A: a\r\n b', 'X-A: a\r\n\tb', 'X-A: \x0b', 'X-A: \x0c', 'X"A: b', '"X": a',
	'X-A:: b', 'X-A: a\r\n\r', 'Connection: Upgrade', 'Upgrade: websocket', 'Connection: Upgrade\r\nUpgrade: websocket', 'Host: b',
	'Host : a', 'Connection: host', 'Keep-Alive: x', 'Proxy-Connection: close', 'Content-Length : 5', 'X-A: \x08', 'X=A: 1', 'X-A;: 1',
	'Connection: close, keep-alive', 'X-A: ' + 'y'.repeat(3000), ':', 'HTTP/1.1 200 OK'];
const LENGTHS = ['+5', '-5', '0x5', '5 5', '5,5', '5, 5', '', '05', '00000000000000000000005', '5.0', '5e0', '18446744073709551615',
	'18446744073709551616', '9223372036854775807', '9223372036854775808', '99999999999999999999999', '5;', '\t5\t', '5\t5', 'five', '\xb5'];
const CODINGS = ['Chunked', 'CHUNKED', 'gzip, chunked', 'chunked, gzip', 'identity', 'gzip', 'chunked, chunked', '"chunked"', 'xchunked',
	'chunked;q=1', 'chunked,', ',chunked', '', 'chunked identity', '\x0bchunked', 'chunked\x0b', '\tchunked\t', 'chun ked', 'identity, chunked'];
const LINE_ENDS = ['\n', '\r', '\r\r\n', '\n\r', '\r\n\r\n', ' \r\n', '\r\n ', '\0\r\n', '\x0b\r\n', '\r \n'];
const EXTENSIONS = [';a', ';a=b', ';a="b c"', ';a="b;c"', ';a=b;c', ';', '; a', ' ;a', ';a=', ';=', ';a="', ';a="b\\"c"', ';\x01', ';\xe4', ' ',
	'\t', ';a b', ';a\n', ';a\r', ';a=b ', ';a ;b', ';a=b=c', ';a"b"', ';a="b"c', ';a="b";c', ';;', ';a;', ';a==b', ';a=""', ';a="\\', ';(', ';a="\x7f"', ';' + 'e'.repeat(300)];
const TRAILERS = ['A: b', 'A: b', 'X-Sum: 5', 'A:', 'A', ' A: b', 'A : b', ': b', 'A: \x01', 'A: b\n', 'A: b\r\n c', 'Content-Length: 5',
	'Transfer-Encoding: chunked', 'Host: b', 'A: ' + 'z'.repeat(9000), 'A\xe4: b'];
const STATUSES = ['200 OK', '200 OK', '200', '200 ', '201 Created', '404 Not Found', '500 x', '204 No Content', '304 Not Modified', '101 x',
	'100 Continue', '407 y', '302 Found'];
const ODD_STATUSES = ['99 x', '099 x', '600 x', '999 x', '1000 x', '20 x', '2x0 x', '+20 x', ' 200 x', '200x', '200\tx', '200 \x01', '200 \xe4',
	'', '000 x', '200 a\rb', '200 a\tb', '-20 x', '200  x', '199 x', '150', '299 a', '599 z'];
const ALPHABET = '\r\n\t \0:;,=/\x01\x0b\x7f\x80\xff0159aAfFgxX"()[]{}@?#%+-_.*HTTP';

class Generator {
	constructor(seed) {
		this.random = random(seed);
	}
	chance(p) {
		return this.random() < p;
	}
	int(n) {
		return Math.floor(this.random() * n);
	}
	pick(list) {
		return list[this.int(list.length)];
	}
	often(usual, odd, p = 0.06) {
		return this.chance(p) ? this.pick(odd) : this.pick(usual);
	}
	eol() {
		return this.chance(0.004) ? this.pick(LINE_ENDS) : '\r\n';
	}
	data() {
		let s = '';
		for (let n = this.chance(0.2) ? 0 : 1 + this.int(20); n > 0; n--)
			s += this.chance(0.1) ? this.pick('\r\n\0\xff') : String.fromCharCode(97 + this.int(26));
		return s;
	}
	size(n) {
		const hex = n.toString(16);
		if (!this.chance(0.08))
			return this.chance(0.2) ? hex.toUpperCase() : hex;
		return this.pick(['0' + hex, '0'.repeat(16 - hex.length) + hex, '0'.repeat(17 - hex.length) + hex, '0x' + hex, '+' + hex, '-' + hex,
			' ' + hex, hex + ' ', hex + 'g', '', 'ffffffffffffffff', '10000000000000000', '7fffffffffffffff', '8000000000000000',
			hex + '\t', (n + 1).toString(16), hex + 'h', '0'.repeat(40) + hex]);
	}
	chunks() {
		let s = '';
		for (let n = this.int(4); n > 0; n--) {
			const d = this.data();
			if (d.length === 0)
				continue;
			s += this.size(d.length) + (this.chance(0.1) ? this.pick(EXTENSIONS) : '') + this.eol() + d + this.eol();
		}
		s += (this.chance(0.04) ? this.pick(['00', '000', '', '0 ', '-0', '+0', '0x0']) : '0');
		s += (this.chance(0.06) ? this.pick(EXTENSIONS) : '') + this.eol();
		for (let n = this.chance(0.2) ? 1 + this.int(3) : 0; n > 0; n--)
			s += this.pick(TRAILERS) + this.eol();
		return s + this.eol();
	}
	// Framing fields and body. `until` : a response may have neither.
	body(until) {
		const fields = [];
		let body = '';
		const how = this.random();
		if (how < 0.35)
			return { fields, body: until && this.chance(0.7) ? this.data() : '' };
		if (how < 0.65) {
			body = this.data();
			fields.push('Content-Length: ' + (this.chance(0.12) ? this.pick(LENGTHS) : body.length));
		} else {
			body = this.chunks();
			fields.push('Transfer-Encoding: ' + (this.chance(0.12) ? this.pick(CODINGS) : 'chunked'));
		}
		if (this.chance(0.05))
			fields.push('Content-Length: ' + (this.chance(0.3) ? this.pick(LENGTHS) : body.length));
		if (this.chance(0.05))
			fields.push('Transfer-Encoding: ' + (this.chance(0.5) ? this.pick(CODINGS) : 'chunked'));
		return { fields, body };
	}
	fields(more) {
		const list = [];
		for (let n = this.int(4); n > 0; n--)
			list.push(this.often(FIELDS, ODD_FIELDS, 0.05));
		list.push(...more);
		if (this.chance(0.002))
			for (let n = 95 + this.int(10); n > 0; n--)
				list.push('F: x');
		if (this.chance(0.0005))
			list.push('X-Long: ' + 'l'.repeat(32700 + this.int(100)));
		for (let i = list.length - 1; i > 0; i--) {
			const j = this.int(i + 1);
			[list[i], list[j]] = [list[j], list[i]];
		}
		return list.map((s) => (this.chance(0.05) ? s.replace(/^[^:]*/, (n) => (this.chance(0.5) ? n.toLowerCase() : n.toUpperCase())) : s));
	}
	rest() {
		return this.chance(0.3) ? this.pick(['GET / HTTP/1.1\r\n\r\n', '\r\n', 'x', '\0', '0\r\n\r\n', 'HTTP/1.1 200 OK\r\n\r\n']) : '';
	}
	request() {
		const { fields, body } = this.body(false);
		const method = this.often(METHODS, ODD_METHODS);
		const version = this.often(['HTTP/1.1'], ODD_VERSIONS);
		let target = this.often(TARGETS, ODD_TARGETS);
		if (method === 'CONNECT' && this.chance(0.8))
			target = this.pick(['a:80', 'ex.org:443', '[::1]:80']);
		if (method === 'OPTIONS' && this.chance(0.3))
			target = '*';
		if (this.chance(0.97))
			fields.push('Host: ' + this.often(HOSTS, ODD_HOSTS, 0.05));
		const space = () => (this.chance(0.005) ? this.pick(['', '  ', '\t', '\x0b']) : ' ');
		const line = method + space() + target + (version ? space() : '') + version;
		return { kind: 0, text: this.assemble(line, fields, body) };
	}
	response() {
		const { fields, body } = this.body(true);
		const version = this.often(['HTTP/1.1'], ODD_VERSIONS);
		const line = version + (this.chance(0.005) ? '  ' : ' ') + this.often(STATUSES, ODD_STATUSES);
		return { kind: this.pick([1, 1, 1, 1, 2, 3]), text: this.assemble(line, fields, body) };
	}
	assemble(line, fields, body) {
		const before = this.chance(0.005) ? this.pick(['\r\n', '\n', ' ', '\r', '\r\n\r\n', '\0']) : '';
		let s = before + line + this.eol();
		for (const f of this.fields(fields))
			s += f + this.eol();
		return s + this.eol() + body + this.rest();
	}
	// Bytes: replaced, removed, put in, doubled; or the end cut off.
	mutate(s) {
		for (let n = 1 + this.int(2); n > 0; n--) {
			const at = this.int(s.length + 1), c = this.pick(ALPHABET);
			switch (this.int(5)) {
			case 0: s = s.slice(0, at) + c + s.slice(at + 1); break;
			case 1: s = s.slice(0, at) + s.slice(at + 1); break;
			case 2: s = s.slice(0, at) + c + s.slice(at); break;
			case 3: s = s.slice(0, at) + s.slice(at, at + 6) + s.slice(at); break;
			case 4: s = this.chance(0.5) ? s.slice(0, at) : s; break;
			}
		}
		return s;
	}
	next() {
		const c = this.chance(0.75) ? this.request() : this.response();
		if (this.chance(0.2))
			c.text = this.mutate(c.text);
		return c;
	}
}

export function generate(n, seed) {
	const g = new Generator(seed);
	return Array.from({ length: n }, () => g.next());
}

export function encode(cases) {
	return Buffer.concat(cases.flatMap(({ kind, text }) => {
		const head = Buffer.alloc(5);
		head[0] = kind;
		head.writeUInt32LE(text.length, 1);
		return [head, Buffer.from(text, 'latin1')];
	}));
}
