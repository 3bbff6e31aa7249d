"use strict";
// What pages do beyond what they show without it: copy commands, draw plots, and leave a
// part alone that somebody is working in.
(() => {
	const showCopy = (root) => root.querySelectorAll(".copy").forEach((b) => { b.hidden = !navigator.clipboard; });
	showCopy(document);
	document.addEventListener("htmx:afterSettle", () => showCopy(document));

	document.addEventListener("click", (e) => {
		const button = e.target.closest(".copy");
		if (!button) return;
		navigator.clipboard.writeText(button.previousElementSibling.textContent).then(() => {
			button.textContent = "Copied";
			setTimeout(() => { button.textContent = "Copy"; }, 1500);
		}, () => { button.textContent = "Not allowed"; });
	});

	// A refresh would take away what is selected or has the focus.
	document.addEventListener("htmx:beforeRequest", (e) => {
		const live = document.getElementById("live"), selection = document.getSelection();
		if (!live || e.target !== live) return;
		const busy = live.contains(document.activeElement) && document.activeElement !== live;
		const selected = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
		if (document.hidden || busy || selected) e.preventDefault();
	});

	// A session that has ended leads to the form.
	document.addEventListener("htmx:responseError", (e) => {
		if (e.detail.xhr.status === 401) location.assign("login");
	});

	const plots = [...document.querySelectorAll(".plot")];
	if (plots.length === 0) return;
	const style = getComputedStyle(document.documentElement);
	const color = (name) => style.getPropertyValue(name).trim();
	const width = () => plots[0].clientWidth;
	// Times and numbers as the rest of the page writes them, in UTC.
	const clock = (t, from, to) => new Date(t * 1000).toISOString().slice(from, to);
	const grouped = (n) => n === null || n === undefined ? "–" : String(Math.round(n * 10) / 10).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
	let drawn = [];
	const build = (data) => {
		drawn.forEach((u) => u.destroy());
		drawn = plots.map((at) => new uPlot({
			width: width(), height: 160, title: at.dataset.label, legend: { show: false },
			tzDate: (t) => uPlot.tzDate(new Date(t * 1000), "Etc/UTC"),
			scales: { y: { range: (_, lo, hi) => [0, Math.max(hi, 1) * 1.1] } },
			axes: [{ stroke: color("--dim"), values: (_, at, axis, space, step) => at.map((t) => clock(t, 11, step < 60 ? 19 : 16)), grid: { stroke: color("--line"), width: 1 } }, { stroke: color("--dim"), values: (_, at) => at.map(grouped), grid: { stroke: color("--line"), width: 1 }, size: 70 }],
			series: [{}, { label: at.dataset.label, stroke: color("--accent"), width: 2 }],
		}, [data.t, data[at.dataset.series]], at));
	};
	const refresh = async () => {
		if (document.hidden) return;
		try {
			const res = await fetch("series.json");
			if (!res.ok) return;
			const data = await res.json();
			if (drawn.length === 0) build(data);
			else drawn.forEach((u, i) => u.setData([data.t, data[plots[i].dataset.series]]));
		} catch { /* the page itself tells that the server does not answer */ }
	};
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawn.forEach((u) => u.destroy()); drawn = []; refresh(); });
	addEventListener("resize", () => drawn.forEach((u) => u.setSize({ width: width(), height: 160 })));
	refresh();
	setInterval(refresh, 2000);
})();
