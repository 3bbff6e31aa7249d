// Looks at every page of the console as a person would, with Chromium: light and dark, on
// a telephone and on a desk. Then does what a person does: creates a tag, issues a number,
// finds it, deletes the tag. Prints what is wrong; with a third argument it leaves pictures there.
//
//	node look.mjs URL [PICTURES]
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const [url, pictures] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const wrong = [];
const browser = await chromium.launch({
	executablePath: "/usr/bin/chromium",
	args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

async function open(width, scheme, javaScriptEnabled = true) {
	const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme, javaScriptEnabled });
	const page = await context.newPage();
	const at = () => `${page.url()} (${width} px, ${scheme})`;
	page.on("console", (m) => { if (m.type() === "error" || m.type() === "warning") wrong.push(`${at()}: console: ${m.text()}`); });
	page.on("pageerror", (e) => wrong.push(`${at()}: ${e}`));
	page.on("request", (r) => { if (new URL(r.url()).host !== new URL(url).host) wrong.push(`${at()}: asks ${r.url()}`); });
	return page;
}

const pages = ["", "tags", "workers", "fence", "clocks", "decoder?ids=1%202124664409056870400", "planner", "log", "tag?name=orders&delete=1", "worker?pool=default&id=0"];
for (const scheme of ["light", "dark"]) {
	for (const width of [390, 1400]) {
		const page = await open(width, scheme);
		for (const path of pages) {
			await page.goto(url + "console/" + path);
			await page.waitForFunction(() => window.htmx !== undefined);
			const title = await page.locator("h1").textContent();
			const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
			if (overflow > 0) wrong.push(`${path} at ${width} px is ${overflow} px too wide`);
			// Through the debugger, which the page's policy does not bind.
			await page.evaluate(axe);
			const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
			for (const v of found.violations.filter((v) => v.impact === "serious" || v.impact === "critical")) {
				wrong.push(`${path} (${scheme}, ${width} px): ${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 120)).join(" | ")}`);
			}
			if (pictures) await page.screenshot({ path: `${pictures}/${title.split(" ")[0].toLowerCase()}-${scheme}-${width}.png` });
		}
		await page.context().close();
	}
}

const name = "of-a-person";
for (const [javaScript, tag] of [[true, name], [false, name + "-without"]]) {
	const page = await open(1400, "light", javaScript);
	await page.goto(url + "console/tags");
	await page.getByLabel("Name").fill(tag);
	await page.getByLabel("Start").fill("7000");
	await page.getByRole("button", { name: "Create" }).click();
	await page.getByText("The tag was created.").waitFor();
	const res = await fetch(`${url}v1/tags/${tag}/ids`, { method: "POST" }).catch(() => null);
	if (res?.ok) {
		const { ids: [id] } = await res.json();
		await page.goto(url + "console/decoder");
		await page.getByLabel("Numbers or codes").fill(id);
		await page.getByLabel("Tag, of codes").fill(tag);
		await page.getByRole("button", { name: "Decode" }).click();
		await page.getByRole("heading", { name: "Who got it" }).waitFor();
		if (!(await page.locator("main").textContent()).includes("7000")) wrong.push("the number is not on the page");
	}
	await page.goto(`${url}console/tag?name=${tag}`);
	await page.getByRole("link", { name: "What would happen" }).click();
	await page.getByLabel("Type the name again").fill(tag);
	await page.getByRole("button", { name: `Delete ${tag}` }).click();
	await page.getByText("The tag was deleted.").waitFor();
	await page.context().close();
}

// What is open learns what happens elsewhere, without being loaded again.
const page = await open(1400, "light");
await page.goto(url + "console/tags");
await page.waitForFunction(() => window.htmx !== undefined);
await fetch(url + "console/tags", { method: "POST", body: new URLSearchParams({ name: "from-elsewhere", kind: "segment", step: "1000" }) });
await page.getByRole("link", { name: "from-elsewhere" }).waitFor({ timeout: 30000 });

await browser.close();
for (const line of wrong) console.log(line);
process.exit(wrong.length > 0 ? 1 : 0);
