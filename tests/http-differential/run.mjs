// Gives the same generated messages to our parser (driver.c) and to Node's, and looks for a reason for each difference in
// reasons.mjs. Fails on a difference without a reason, on a reason that two entries claim in conflict of sides, and when the
// generator produced too few accepted messages to mean anything.
//
//	node run.mjs DRIVER [--cases N] [--seed N] [--examples]

import { spawnSync } from 'node:child_process';
import process from 'node:process';
process.removeAllListeners("warning");        // process.binding: the parser is not reachable in another way

// The reasons are about llhttp 9 (Node 20 and later). The one of Node 18, which Debian 12 has, takes more than RFC 9112 allows.
const LLHTTP_MIN = 9, SKIPPED = 77;
if (parseInt(process.versions.llhttp) < LLHTTP_MIN) {
	console.log(`skipped: Node ${process.version} has llhttp ${process.versions.llhttp}; the comparison needs ${LLHTTP_MIN}, as in Node 20`);
	process.exit(SKIPPED);
}

const { generate, encode } = await import('./cases.mjs');
const { judge } = await import('./node-verdict.mjs');
const { reasons, Facts } = await import('./reasons.mjs');

const ACCEPTED_MIN = 0.25;              // share of the cases that both must accept alike

function parseArgs(argv) {
	const args = { driver: argv[0], cases: 5000, seed: 20261130, examples: false };
	for (let i = 1; i < argv.length; i++) {
		if (argv[i] === '--examples')
			args.examples = true;
		else if (argv[i] === '--cases' || argv[i] === '--seed')
			args[argv[i].slice(2)] = Number(argv[++i]);
		else
			throw new Error(`unknown argument ${argv[i]}`);
	}
	if (!args.driver || !(args.cases > 0) || !Number.isInteger(args.seed))
		throw new Error('usage: node run.mjs DRIVER [--cases N] [--seed N] [--examples]');
	return args;
}

function ourVerdicts(driver, cases) {
	const r = spawnSync(driver, { input: encode(cases), maxBuffer: 1 << 30, encoding: 'latin1' });
	if (r.status !== 0)
		throw new Error(`${driver} failed: ${r.signal ?? r.status} ${r.stderr}`);
	const lines = r.stdout.split('\n');
	if (lines.length !== cases.length + 1)
		throw new Error(`${lines.length - 1} verdicts for ${cases.length} cases`);
	return lines;
}

// 'same', 'ours' (only Node accepts: we are stricter), 'node' (only we accept), 'both' (both accept, with different results).
function compare(ours, theirs) {
	const a = ours.startsWith('ok'), b = theirs.startsWith('ok');
	if (a && b)
		return ours === theirs ? 'same' : 'both';
	return a === b ? 'same' : a ? 'node' : 'ours';
}

function main() {
	const args = parseArgs(process.argv.slice(2));
	const cases = generate(args.cases, args.seed);
	const verdicts = ourVerdicts(args.driver, cases);
	const counts = new Map(), examples = new Map();
	const totals = { accepted: 0, refused: 0, ours: 0, node: 0, both: 0 };
	let unclassified = 0;

	cases.forEach((c, i) => {
		const ours = verdicts[i], theirs = judge(c), side = compare(ours, theirs);
		if (side === 'same') {
			totals[ours.startsWith('ok') ? 'accepted' : 'refused']++;
			return;
		}
		totals[side]++;
		const facts = new Facts(c, ours, theirs);
		const reason = reasons.find((r) => r.side === side && r.when(facts));
		if (!reason) {
			if (unclassified++ < 20)
				console.error(`case ${i}, kind ${c.kind}, ${side}: no reason\n  ${JSON.stringify(c.text.slice(0, 600))}\n` +
					`  ours: ${ours.slice(0, 300)}\n  node: ${theirs.slice(0, 300)}`);
			return;
		}
		counts.set(reason.name, (counts.get(reason.name) ?? 0) + 1);
		if (!examples.has(reason.name) || examples.get(reason.name).length > c.text.length)
			examples.set(reason.name, c.text);
	});
	console.log(`${cases.length} cases, seed ${args.seed}, llhttp ${process.versions.llhttp}, Node ${process.version}`);
	console.log(`accepted by both, with the same result: ${totals.accepted}; by neither: ${totals.refused}`);
	console.log(`only by Node: ${totals.ours}; only by us: ${totals.node}; by both, with different results: ${totals.both}\n`);
	console.log('| who | reason | cases | why |\n| --- | --- | ---: | --- |');
	for (const r of reasons)
		console.log(`| ${r.side} | ${r.name} | ${counts.get(r.name) ?? 0} | ${r.why} |`);
	if (args.examples)
		for (const [name, text] of examples)
			console.log(`${name}: ${JSON.stringify(text.slice(0, 300))}`);
	if (unclassified > 0)
		console.error(`\n${unclassified} differences without a reason`);
	if (totals.accepted < ACCEPTED_MIN * cases.length)
		console.error(`\nonly ${totals.accepted} cases accepted by both: the generator no longer tests anything`);
	process.exitCode = unclassified > 0 || totals.accepted < ACCEPTED_MIN * cases.length ? 1 : 0;
}

main();
