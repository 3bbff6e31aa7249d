import drizzle from "./drizzle.cjs";

export const { from, numbered } = drizzle;
