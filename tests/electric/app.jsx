// Rows in a page by Electric's React hook and by TanStack DB's collection, each in a list: `?url=…&table=…&where=…`.
import { electricCollectionOptions } from "@tanstack/electric-db-collection";
import { createCollection, useLiveQuery } from "@tanstack/react-db";
import { useShape } from "@electric-sql/react";
import { createRoot } from "react-dom/client";

const { url, table, where } = Object.fromEntries(new URLSearchParams(location.search));

function List({ id, rows, ready }) {
  const text = (row) => JSON.stringify(row, (_, value) => (typeof value === "bigint" ? `${value}n` : value));
  return (
    <ul id={id} data-ready={ready}>
      {rows.map((row) => (
        <li key={row.id}>{text(row)}</li>
      ))}
    </ul>
  );
}

function Hook({ id, params }) {
  const { data, isLoading, error } = useShape({ url, params });
  return error ? <p id={id}>{String(error)}</p> : <List id={id} rows={data} ready={!isLoading} />;
}

window.collection = createCollection(
  electricCollectionOptions({ id: "rows", shapeOptions: { url, params: { table } }, getKey: (row) => String(row.id) }),
);

function Collection({ id }) {
  const { data, isReady } = useLiveQuery((query) => query.from({ row: window.collection }));
  return <List id={id} rows={data.map(({ id, name, amount }) => ({ id, name, amount }))} ready={isReady} />;
}

createRoot(document.getElementById("root")).render(
  <>
    <Hook id="hook" params={{ table }} />
    <Hook id="some" params={{ table, where }} />
    <Collection id="collection" />
  </>,
);
