"use strict";

// numbers returns a function that issues the numbers of one tag, fetched in batches. They are
// texts: most of them are beyond what a number of JavaScript holds.
exports.numbers = function (tag, count = 100, server = process.env.HAPAX_SERVER ?? "http://127.0.0.1:8080") {
  let batch = [];
  let fetching; // by the first of those that wait
  return async function next() {
    while (batch.length === 0) {
      fetching ??= (async () => {
        try {
          const answer = await fetch(`${server}/v1/tags/${tag}/ids?count=${count}`, { method: "POST", signal: AbortSignal.timeout(10_000) });
          if (!answer.ok) throw new Error(`hapax: ${answer.status}: ${await answer.text()}`);
          batch = (await answer.json()).ids.reverse();
        } finally {
          fetching = undefined;
        }
      })();
      await fetching;
    }
    return batch.pop();
  };
};
