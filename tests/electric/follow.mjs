// Follows shapes with Electric's own client: `follow.mjs CLIENT URL SHAPES`, SHAPES a JSON list of options of ShapeStream,
// and of `subsets` that are asked for.
// Writes a line of JSON whenever a shape is up to date, and for what goes wrong.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, shapes] = process.argv.slice(2);
const found = createRequire(`${folder}/package.json`).resolve("@electric-sql/client");
const { Shape, ShapeStream } = await import(pathToFileURL(found));
const say = (line) =>
  console.log(JSON.stringify(line, (_, value) => (typeof value === "bigint" ? `${value}n` : value)));

JSON.parse(shapes).forEach(async ({ subsets = [], ...options }, number) => {
  const stream = new ShapeStream({
    url,
    ...options,
    onError: (error) => say({ shape: number, error: String(error) }),
  });
  stream.subscribe((messages) => {
    for (const { headers } of messages)
      if (headers.control && headers.control !== "up-to-date") say({ shape: number, control: headers.control });
  });
  const shape = new Shape(stream);
  shape.subscribe(({ value }) =>
    say({ shape: number, handle: stream.shapeHandle, offset: stream.lastOffset, rows: Object.fromEntries(value) }),
  );
  // One after the other: of two that come from other versions, the client would follow the later one alone.
  for (const subset of subsets) await shape.requestSnapshot(subset);
});
