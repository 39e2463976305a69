// Prints how many calls the archives below a path have, and how many of them succeeded: node count.mjs 'FOLDER/**/*.jsonl.gz'
import { DuckDBInstance } from "@duckdb/node-api";

const db = await (await DuckDBInstance.create()).connect();
const read = await db.runAndReadAll(
  `select count(*)::integer, (count(*) filter (where receipt ->> 'status' = 'succeeded'))::integer
   from read_json($1, format => 'newline_delimited', columns => {call: 'json', receipt: 'json'})`, [process.argv[2]]);
console.log(read.getRows()[0].join(" "));
