"use strict";
// What pages do beyond what they show without it: copy commands, and leave a part alone
// that somebody is working in.
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
})();
