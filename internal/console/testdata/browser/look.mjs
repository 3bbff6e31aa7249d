// Uses the console of three nodes as a person would, with Chromium, and prints what is
// wrong. The one argument is JSON:
//
//	url       of the first node, with a slash at the end
//	admin     a token that may do everything; reader: one that may only see
//	nodes     what the three nodes are called
//	control   a URL: a POST to control/NAME does to the fleet what NAME says
//	scale     by how much to wait longer than a quiet machine needs
//	long      also what takes long: a clock that is set back, restored stores, a missing node
//	pictures  a directory for pictures of every page and state; empty for none
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const { url, admin, reader, nodes, control, scale, long, pictures } = JSON.parse(process.argv[2]);
const at = url + "console/";
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const wrong = [];
const soon = 10_000 * scale;
const browser = await chromium.launch({
	executablePath: "/usr/bin/chromium",
	args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

async function open(width, colorScheme, javaScriptEnabled = true, storageState = undefined) {
	const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, javaScriptEnabled, storageState });
	const page = await context.newPage();
	page.setDefaultTimeout(3 * soon);
	page.on("console", (m) => {
		if (page.url().endsWith("name=none") && m.text().includes("404")) return; // of the page itself
		if (m.type() === "error" || m.type() === "warning") wrong.push(`${page.url()}: console: ${m.text()}`);
	});
	page.on("pageerror", (e) => wrong.push(`${page.url()}: ${e}`));
	page.on("request", (r) => { if (new URL(r.url()).host !== new URL(url).host) wrong.push(`${page.url()}: asks ${r.url()}`); });
	return page;
}

async function told(name, body = "") {
	const res = await fetch(`${control}/${name}`, { method: "POST", body });
	if (!res.ok) throw new Error(`${name}: ${await res.text()}`);
	return res.text();
}

async function logIn(page, token) {
	await page.goto(at);
	await page.getByLabel("Token").fill(token);
	await page.getByRole("button", { name: "Log in" }).click();
	await page.getByRole("heading", { name: "Overview" }).waitFor();
}

// says waits until an open page says something, by itself, and tells how long that took.
async function says(page, what, ...texts) {
	const began = Date.now();
	for (const text of texts) {
		try {
			await page.locator("#live").getByText(text).first().waitFor({ timeout: 3 * soon });
		} catch {
			wrong.push(`${what}: the page does not say "${text}": ${(await page.locator("main").innerText()).slice(0, 3000)}`);
		}
	}
	console.error(`${what}: told after ${((Date.now() - began) / 1000).toFixed(1)} s`);
}

// includes checks what a page says.
async function includes(page, what, ...texts) {
	const text = await page.locator("main").innerText();
	for (const want of texts) if (!text.includes(want)) wrong.push(`${what} lacks "${want}": ${text.slice(0, 3000)}`);
}

// clean checks that a page is usable by all, in both schemes and on both devices.
async function clean(page, what) {
	for (const [width, colorScheme] of long ? [[390, "light"], [390, "dark"], [1280, "light"], [1280, "dark"]] : [[390, "light"], [1280, "dark"]]) {
		await page.setViewportSize({ width, height: 900 });
		await page.emulateMedia({ colorScheme });
		const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
		if (overflow > 0) wrong.push(`${what} at ${width} px is ${overflow} px too wide`);
		await page.evaluate(axe); // through the debugger, which the page's policy does not bind
		const rules = { type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] };
		const found = await page.evaluate((runOnly) => window.axe.run(document, { runOnly, resultTypes: ["violations"] }), rules);
		for (const v of found.violations) {
			wrong.push(`${what} (${colorScheme}, ${width} px): ${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 120)).join(" | ")}`);
		}
		if (pictures) await page.screenshot({ path: `${pictures}/${what.replace(/\W+/g, "-")}-${width}-${colorScheme}.png`, fullPage: true });
	}
	await page.setViewportSize({ width: 1400, height: 900 });
	await page.emulateMedia({ colorScheme: "light" });
}

let phase = Date.now();
function done(what) {
	console.error(`${what}: ${((Date.now() - phase) / 1000).toFixed(1)} s`);
	phase = Date.now();
}

// Somebody who may only see is refused what changes something.
{
	const page = await open(1400, "light");
	await page.goto(at);
	await clean(page, "login");
	await logIn(page, reader);
	await page.getByText("(reads only)").waitFor();
	await page.goto(at + "tags");
	if (await page.getByRole("heading", { name: "Create a tag" }).count() > 0) wrong.push("a reader is offered to create a tag");
	const res = await page.request.post(at + "tags", { form: { name: "of-a-reader", kind: "segment", do: "1" } });
	if (res.status() !== 403) wrong.push(`a reader creates a tag: ${res.status()}`);
	await page.getByRole("button", { name: "Log out" }).click();
	await page.getByLabel("Token").waitFor();
	await page.context().close();
}
done("a reader");

const page = await open(1400, "light");
await logIn(page, admin);
const state = await page.context().storageState();

// Creates a tag, after having read what comes of it, issues a number, finds who got it.
async function create(page, tag) {
	await page.goto(at + "tags");
	await page.getByText("Create a tag").click(); // closed until somebody wants it
	await page.getByLabel("Name", { exact: true }).fill(tag);
	await page.getByLabel("Start").fill("7000");
	await page.getByRole("button", { name: "What would happen" }).click();
	await page.getByText(/The first number is 7\s000/).waitFor();
	await page.getByRole("button", { name: `Create ${tag}` }).click();
	await page.getByText("The tag was created.").waitFor();
	const res = await page.request.post(`${url}v1/tags/${tag}/ids`, { headers: { Authorization: `Bearer ${admin}` } });
	const { ids: [id] } = await res.json();
	if (id !== "7000") wrong.push(`the first number is ${id}`);
	await page.goto(at + "decoder");
	await page.getByLabel("Numbers or codes").fill(id);
	await page.getByLabel("Tag, of codes").fill(tag);
	await page.getByRole("button", { name: "Decode" }).click();
	await page.getByRole("heading", { name: "Who got it" }).waitFor();
	await includes(page, "the decoder", "7000", tag, nodes[0], "Granted on");
	if (!page.url().includes("ids=7000")) wrong.push(`what was decoded has no URL: ${page.url()}`);
}
await create(page, "of-a-person");

// The questions of three in the morning, each from the overview on and without the documents:
// what somebody has to do for the answer, and how long the console takes for that.
async function asked(question, answer) {
	const began = Date.now();
	let acts = 0;
	await page.goto(at);
	await answer((act) => { acts++; return act; });
	console.error(`${question}: ${acts} acts, ${((Date.now() - began) / 1000).toFixed(1)} s`);
	if (acts > 2) wrong.push(`${question} takes ${acts} acts`);
}
await asked("which tag issues most", async () => {
	const first = page.getByRole("region", { name: "Busiest tags" }).locator("tbody tr").first();
	await first.getByRole("link", { name: "orders" }).waitFor();
});
await asked("when the pool ends", async () => {
	const tile = page.locator("main").getByText("First pool to end").locator("..");
	if (!/20\d\d-\d\d-\d\d/.test(await tile.innerText())) wrong.push(`when the pool ends: ${await tile.innerText()}`);
});
{
	const res = await page.request.post(`${url}v1/tags/snowflake/ids`, { headers: { Authorization: `Bearer ${admin}` } });
	const { ids: [id] } = await res.json();
	await asked("who got a number", async (act) => {
		await act(page.getByLabel("Who got number").fill(id));
		await act(page.getByRole("button", { name: "Find" }).click());
		await page.getByRole("heading", { name: "Who got it" }).waitFor();
	});
	await includes(page, "the decoder of a snowflake", "Granted on", "guessed", ...nodes);
}
done("a tag and its numbers");

// A click copies a command.
{
	await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
	await page.goto(at + "workers");
	await page.locator(".as-command").getByRole("button", { name: "Copy" }).click();
	await page.getByRole("button", { name: "Copied" }).waitFor();
	const copied = await page.evaluate(() => navigator.clipboard.readText());
	if (!copied.startsWith("hapax workers list default --server http://")) wrong.push(`what is copied is ${copied}`);
}

// Every page, in both schemes and on both devices: whole, usable by all, and with all nodes.
const pages = {
	"": [...nodes, "Numbers are issued: 3 of 3 nodes can", "Without the store", "First pool to end", "hapax status"],
	"tags": ["orders", "of-a-person", "hapax tags list"], "tags?sort=rate": ["sorted by a column", "orders"],
	"tag?name=orders&delete=1": [...nodes, "Type the name again", "hapax tags delete orders"],
	"workers": [...nodes, "The pool ends", "hapax workers list"], "worker?pool=default&id=0": ["Retire worker 0", "hapax workers retire default 0"],
	"fence": [...nodes, "No fence", "hapax nodes"], "clocks": [...nodes, "Against the store"],
	"decoder?ids=1%202124664409056870400": ["hapax parse"], "planner": ["Proposed", "hapax plan"], "log?only=actions": ["create tag"],
	"log": ["create tag"], "?range=24h": ["Numbers a second", "Store, ms a grant"], "tags?has=ORD": ["orders"], "tag?name=snowflake": ["of the pool"],
};
const bare = { "tag?name=none": ["does not exist"] };
{
	const page = await open(390, "light", true, state);
	for (const [path, wants] of Object.entries({ ...pages, ...bare })) {
		await page.goto(at + path);
		if (!(path in bare)) await page.waitForFunction(() => window.htmx !== undefined);
		await includes(page, path || "overview", ...wants);
		await clean(page, path || "overview");
	}
	// The keyboard alone: the first key leads past the navigation.
	await page.goto(at);
	await page.keyboard.press("Tab");
	await page.keyboard.press("Enter");
	if (!(await page.evaluate(() => location.hash === "#main"))) wrong.push("the first key does not lead to the content");
	// On to the range of the charts.
	const reach = async (name) => {
		for (let i = 0; i < 60; i++) {
			await page.keyboard.press("Tab");
			if ((await page.evaluate(() => document.activeElement?.textContent || document.activeElement?.id)) === name) return;
		}
		wrong.push(`${page.url()}: no key leads to ${name}`);
	};
	await reach("An hour");
	await page.keyboard.press("Enter");
	await page.waitForURL(/range=1h$/);
	await page.getByRole("img", { name: /^Numbers a second: / }).waitFor();
	// The filter of tags, and the log by level.
	await page.goto(at + "tags");
	await reach("has");
	await page.keyboard.type("RDER");
	await page.keyboard.press("Enter");
	await page.waitForURL(/has=RDER/);
	if (await page.locator("tbody tr").count() !== 1) wrong.push("the filter leaves other tags");
	await page.goto(at + "log");
	await reach(await page.locator("#only").evaluate((e) => e.textContent));
	await page.keyboard.press("End");
	await reach("Show");
	await page.keyboard.press("Enter");
	await page.waitForURL(/only=actions/);
	await page.context().close();
}
done("every page");

// All of it works without JavaScript.
{
	const page = await open(1400, "light", false, state);
	await create(page, "without-a-program");
	await page.goto(at + "tag?name=without-a-program");
	await page.getByRole("link", { name: "What would happen" }).click();
	await page.getByLabel("Type the name again").fill("without-a-program");
	await page.getByRole("button", { name: "Delete without-a-program" }).click();
	await page.getByText("The tag was deleted.").waitFor();
	await page.context().close();
}
done("without JavaScript");

// Retires a worker ID that a node has.
await page.goto(at + "workers");
await page.locator("table").getByRole("link").first().click();
await page.getByRole("button", { name: "Retire worker" }).click();
await page.getByText("The worker ID is out of use").waitFor();

// What is open learns what happens elsewhere, without being loaded again.
await page.goto(at + "tags");
await told("create", "from-elsewhere");
await page.getByRole("link", { name: "from-elsewhere" }).waitFor();
done("a worker, and what happens elsewhere");

await page.goto(at);
await told("stop-store");
await says(page, "the store has stopped", "store_unavailable", "hapax doctor", "What the runbook says");
await clean(page, "a store that has stopped");
await asked("why a node refuses", () => page.locator("#live").getByText("store_unavailable").first().waitFor());
await told("start-store");
await says(page, "the store is back", "Numbers are issued: 3 of 3 nodes can");

if (long) {
	await told("clock", "-5s");
	await says(page, "a clock was set back", "its clock was set back by", "chronyc tracking");
	await told("clock", "0s");
	await told("backup");
	await told("use");
	await Promise.all([told("restore"), says(page, "the store was restored", /granted nothing: the store went back|refuses the store/, "hapax status")]);
	await says(page, "the store was healed", "Numbers are issued: 3 of 3 nodes can");
	await told("backup");
	await told("use");
	await Promise.all([told("restore-without"), says(page, "the store was restored while a node was dead", /granted nothing: the store went back|refuses the store/)]);
	await page.getByText("missing: it must say what it used").first().waitFor(); // those who live are asked first
	await says(page, "a node is missing", "missing: it must say what it used", "hapax nodes settle");
	await clean(page, "a missing node");
	await page.goto(at + "fence");
	await clean(page, "a fence");
	await page.goto(at);
	await page.getByRole("link", { name: "Speak for it" }).first().click();
	await page.getByLabel("Its witness file").setInputFiles(await told("witness"));
	await page.getByRole("button", { name: "What would happen" }).click();
	await page.getByRole("button", { name: "Do it" }).waitFor();
	await includes(page, "the statement", "you speak for", "--witness-file witness");
	await page.getByRole("button", { name: "Do it" }).click();
	await page.getByText("It was taken down.").waitFor();
	await page.goto(at);
	await says(page, "the missing node was settled", "Numbers are issued");
} else {
	await told("kill");
	await says(page, "a node was killed", nodes[2], "does not answer", "hapax nodes");
}

// A tag of which no numbers are left: the overview leads to it.
await page.goto(at + "tags");
await page.getByText("Create a tag").click();
await page.getByLabel("Name", { exact: true }).fill("used-up");
await page.getByLabel("Start").fill("9223372032000000000");
await page.getByLabel("Step: ").fill("100");
await page.getByLabel("Delta").fill("1048576");
await page.getByRole("button", { name: "What would happen" }).click();
await page.getByRole("button", { name: "Create used-up" }).click();
await page.getByText("The tag was created.").waitFor();
for (let i = 0, status = 200; status === 200 && i < 10; i++) {
	status = (await page.request.post(`${url}v1/tags/used-up/ids?count=100`, { headers: { Authorization: `Bearer ${admin}` } })).status();
	if (i === 9) wrong.push("a tag does not end");
}
await page.goto(at);
await says(page, "a tag is used up", "cannot be issued from", "line_exhausted", "See the tag");
await clean(page, "a tag that is used up");
await page.getByRole("link", { name: "See the tag" }).first().click();
await page.getByRole("heading", { name: "Tag used-up" }).waitFor();
await includes(page, "the tag that is used up", "no number can be issued", "line_exhausted");
await clean(page, "the tag that is used up");

await browser.close();
for (const line of wrong) console.log(line);
process.exit(wrong.length > 0 ? 1 : 0);
