import typeorm from "./typeorm.cjs";

export const { numbered } = typeorm;
