// Waits for transactions with TanStack DB's collection: `await.mjs CLIENT URL TABLE`; a line in is the number of one.
// Writes a line of JSON when the collection has the rows, and for each transaction that it has.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, url, table] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { createCollection } = require("@tanstack/react-db");
const { electricCollectionOptions } = require("@tanstack/electric-db-collection");

const collection = createCollection(
  electricCollectionOptions({ id: "rows", shapeOptions: { url, params: { table } }, getKey: (row) => row.id }),
);
const rows = () => collection.toArray.map(({ id, name }) => [id, name]).sort(([a], [b]) => a - b);
await collection.preload();
console.log(JSON.stringify({ rows: rows() }));
for await (const line of createInterface({ input: process.stdin })) {
  collection.utils.awaitTxId(Number(line), 100_000).then(
    () => console.log(JSON.stringify({ transaction: Number(line), rows: rows() })),
    (error) => console.log(JSON.stringify({ error: String(error) })),
  );
}
