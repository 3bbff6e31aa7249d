export * from "./drizzle.cjs";
