// Calls every route of the server whose URL is the argument, with nothing but the types
// that openapi-typescript makes of its description.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };

const client = createClient<paths>({ baseUrl: process.argv[2] });

function must<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) {
    throw new Error(`${answer.response.url}: ${answer.response.status} ${JSON.stringify(answer.error)}`);
  }
  return answer.data;
}

function same(got: unknown, want: unknown) {
  if (JSON.stringify(got) !== JSON.stringify(want)) {
    throw new Error(`got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
  }
}

const orders = { path: { tag: "orders" } };

// Numbers, in each of the ways that a count and a format can be given.
const ids: string[] = must(await client.POST("/v1/tags/{tag}/ids", { params: orders, body: { count: 3 } })).ids;
same(ids, ["1", "2", "3"]);
same(must(await client.POST("/v1/tags/{tag}/ids", { params: orders })).ids, ["4"]);
same(must(await client.POST("/v1/tags/{tag}/ids", { params: { ...orders, query: { count: 2 } } })).ids, ["5", "6"]);
const text: string = must(await client.GET("/v1/tags/{tag}/next", { params: { ...orders, query: { count: 2 } }, parseAs: "text" }));
same(text, "7\n8\n");

const created: components["schemas"]["Tag"] = must(
  await client.PUT("/v1/tags/{tag}", {
    params: { path: { tag: "a/ü" }, header: { "If-None-Match": "*" } },
    body: { start: "9007199254740993", code: "INV-{id:19}{check}" },
  }),
);
same(created.start, "9007199254740993");
const coded = must(await client.POST("/v1/tags/{tag}/ids", { params: { path: { tag: "a/ü" }, query: { format: "code" } } }));
same(coded.ids, ["9007199254740993"]);
const code: string = coded.codes?.[0] ?? "none";
same(must(await client.GET("/v1/tags/{tag}/codes/{code}", { params: { path: { tag: "a/ü", code } } })).id, "9007199254740993");

const taken = must(await client.POST("/v1/tags/{tag}/take", { params: orders, body: { count: 5 } }));
same([taken.first, taken.delta, taken.count], ["1001", "1", 5]);
const returned: number = must(
  await client.POST("/v1/tags/{tag}/handback", { params: orders, body: { receipt: taken.receipt ?? "none", unused: 3 } }),
).returned;
same(returned, 3);

const snowflake = must(await client.POST("/v1/tags/{tag}/ids", { params: { path: { tag: "snowflake" } } })).ids[0] ?? "none";
const parsed = must(await client.GET("/v1/ids/{id}", { params: { path: { id: snowflake } } }));
same(must(await client.POST("/v1/ids/compose", { body: { fields: parsed.fields } })).id, snowflake);
same(must(await client.POST("/v1/ids/compose", { body: { fields: { ...parsed.fields, time: parsed.time } } })).id, snowflake);
const layouts: string[] = must(await client.GET("/v1/layouts")).layouts.map((l) => l.spec);
same(layouts.length > 5, true);

// Tags and pools.
const page = must(await client.GET("/v1/tags", { params: { query: { limit: 1 } } }));
const names: string[] = page.tags.map((t) => t.name);
same([names, page.next], [["a/ü"], "a/ü"]);
const kind: "segment" | "snowflake" = must(await client.GET("/v1/tags/{tag}", { params: orders })).kind;
same(kind, "segment");
same(must(await client.DELETE("/v1/tags/{tag}", { params: orders })).deleted, true);

const pool = must(await client.GET("/v1/pools")).pools[0]?.name ?? "none";
const worker: number = must(await client.GET("/v1/pools/{pool}/workers", { params: { path: { pool } } })).workers[0]?.worker ?? -1;
same(must(await client.GET("/v1/pools/{pool}/workers/{worker}", { params: { path: { pool, worker } } })).state, "held");
const trace = must(await client.GET("/v1/trace/{number}", { params: { path: { number: "1" }, query: { tag: "orders" } } }));
same(trace.lines.map((l) => l.verdict), ["granted"]);

// A problem has a code that is one of those that are known.
const refused = await client.GET("/v1/ids/{id}", { params: { path: { id: "x" } } });
const problem: components["schemas"]["Problem"]["code"] | undefined = refused.error?.code;
same(problem, "invalid_id");

// The server itself.
same(must(await client.GET("/healthz", { parseAs: "text" })), "ok\n");
same(must(await client.GET("/readyz")).ready, true);
same(must(await client.GET("/metrics", { parseAs: "text" })).includes("hapax_"), true);
must(await client.GET("/v1/openapi.json"));

// At the end, because the server has to take another worker ID after it.
const retired = must(await client.POST("/v1/pools/{pool}/workers/{worker}/retire", { params: { path: { pool, worker } } }));
same(retired.worker, worker);
