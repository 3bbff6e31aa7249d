export * from "./typeorm.cjs";
