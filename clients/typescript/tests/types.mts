import { Client, HapaxError, type Code, type Tag } from "hapax";

type Is<A, B> = [A, B] extends [B, A] ? true : never;
const is = <A, B>(_yes: Is<A, B>) => {};

export async function use() {
  await using client = new Client(["http://127.0.0.1:8080", "http://127.0.0.1:8081"], { token: "t", logger: console, tls: { ca: "pem" } });
  const tag = client.tag("orders");
  is<typeof tag, Tag<bigint>>(true);
  const n = await tag.next({ deadline: 100, signal: AbortSignal.timeout(100) });
  is<typeof n, bigint>(true);
  const texts = await client.tag("orders", { as: "string" }).take(2);
  is<typeof texts, string[]>(true);
  const codes = await client.tag("invoices", { as: "number" }).codes();
  is<typeof codes, Code<number>[]>(true);
  // @ts-expect-error: codes of numbers have no bigint
  is<typeof codes, Code<bigint>[]>(true);
  // @ts-expect-error: no such representation
  client.tag("orders", { as: "text" });
  // @ts-expect-error: milliseconds are a number
  new Client("http://127.0.0.1:8080", { deadline: "5s" });
  // @ts-expect-error: a client makes it
  new (tag.constructor as typeof Tag)();
}

export const codeOf = (e: unknown): string => (e instanceof HapaxError ? e.code : "");
