import hapax = require("hapax");

const client = new hapax.Client("http://127.0.0.1:8080");
const number: Promise<number> = client.tag("orders", { as: "number" }).next();
const closed: Promise<void> = client.close();
export = { number, closed };
