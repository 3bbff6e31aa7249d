// Makes the pictures of the console for the documents: starts three nodes on one store,
// has them issue, and looks at three pages with Chromium.
//
//	go build -o /tmp/hapax ./cmd/hapax
//	node internal/console/testdata/browser/pictures.mjs /tmp/hapax docs/pictures
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

const [binary, into] = process.argv.slice(2).map((p) => resolve(p));
const dir = mkdtempSync(join(tmpdir(), "hapax-pictures-"));
const running = [];
function start(command, args) {
	const child = spawn(command, args, { cwd: dir, stdio: ["ignore", "ignore", "pipe"] });
	running.push(child);
	return child;
}
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const answers = async (url) => { for (; ; await sleep(100)) if ((await fetch(url).catch(() => null))?.ok) return; };

try {
	const redis = 16379, ports = [18080, 18081, 18082], urls = ports.map((p) => `http://127.0.0.1:${p}`);
	start("redis-server", ["--port", String(redis), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "yes"]);
	await sleep(500);
	ports.forEach((port, i) => start(binary, ["serve", "--data", `node-${i + 1}`, "--http", `127.0.0.1:${port}`, "--resp", "127.0.0.1:0", "--store", `redis://127.0.0.1:${redis}`]).stderr.resume());
	for (const url of urls) await answers(url + "/readyz");
	const until = Date.now() + 40_000;
	const issue = async (url, tag, count, every) => {
		for (; Date.now() < until; await sleep(every)) await fetch(`${url}/v1/tags/${tag}/ids?count=${count}`, { method: "POST" }).catch(() => null);
	};
	const load = [];
	for (const [tag, count, every] of [["orders", 40, 50], ["invoices", 9, 120], ["snowflake", 25, 70], ["shipments", 3, 200]]) for (const url of urls) load.push(issue(url, tag, count, every));
	await sleep(30_000);
	const { ids: [id] } = await (await fetch(`${urls[1]}/v1/tags/snowflake/ids`, { method: "POST" })).json();

	const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"] });
	async function picture(name, path, colorScheme, height, then) {
		const page = await browser.newPage({ viewport: { width: 1120, height }, colorScheme });
		await page.goto(`${urls[0]}/console/${path}`);
		await page.waitForFunction(() => window.htmx !== undefined);
		if (then) await then(page);
		await page.evaluate(([from, to]) => { // this machine's own names are nobody's business
			const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
			while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(new RegExp(`${from}/(node-\\d)`, "g"), to);
		}, [`${hostname()}:${dir}`, "$1.example:/var/lib/hapax"]);
		const file = join(into, name + ".png");
		await page.screenshot({ path: file });
		if (statSync(file).size > 150 * 1024) throw new Error(`${file} has ${statSync(file).size} bytes, more than 150 KiB`);
		await page.close();
	}
	await picture("console-overview", "", "light", 980, (page) => page.locator(".chart").first().waitFor());
	await picture("console-decoder", `decoder?ids=${id}`, "light", 860);
	running.pop().kill("SIGKILL");
	await picture("console-trouble", "", "light", 700, (page) => page.locator("#live").getByText("dead: no heartbeat").waitFor());
	await browser.close();
	await Promise.all(load);
} finally {
	for (const child of running) child.kill("SIGKILL");
	await sleep(300);
	rmSync(dir, { recursive: true, force: true });
}
