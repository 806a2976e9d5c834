// Asks a router with unmodified ioredis and node-redis: `node main.js HOST PORT [FILE]`. Prints what it checked; ends with 1
// at the first wrong answer.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Redis } from "ioredis";
import { createClient } from "redis";

const [host, port, path] = process.argv.slice(2);

const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;

const iata = (value) => JSON.parse(value).iata;

async function check(client, what, holds) {
  try {
    await holds();
  } catch (error) {
    console.error(`${client}: ${what}: ${error}`);
    process.exit(1);
  }
  console.log(`${client}: ${what}`);
}

async function askIoredis(options) {
  const name = `ioredis ${version("ioredis")}`;
  const client = new Redis({ host, port: Number(port), ...options });
  await check(name, "GET", async () => assert.equal(iata(await client.get("KJFK")), "JFK"));
  await check(name, "a missing key is null", async () => assert.equal(await client.get("nowhere"), null));
  await check(name, "MGET", async () => {
    const values = await client.mget("KJFK", "nowhere", " egll ");
    assert.equal(values[1], null);
    assert.equal(iata(values[2]), "LHR");
  });
  await check(name, "EXISTS", async () => assert.equal(await client.exists("KJFK", "nowhere"), 1));
  await check(name, "SET is refused", () => assert.rejects(client.set("KJFK", "x"), /READONLY/));
  await check(name, "a pipeline of 1,000", async () => {
    const pipeline = client.pipeline();
    for (let number = 0; number < 1000; number++) pipeline.get("KJFK");
    for (const [error, value] of await pipeline.exec()) assert.equal(error ?? iata(value), "JFK");
  });
  await check(name, "200 promises at once", async () => {
    const values = await Promise.all(Array.from({ length: 200 }, () => client.get("KJFK")));
    for (const value of values) assert.equal(iata(value), "JFK");
  });
  await client.quit();
}

async function askNodeRedis(options) {
  const name = `node-redis ${version("redis")}`;
  const client = createClient({ socket: { host, port: Number(port) }, ...options });
  await client.connect();
  await check(name, "GET", async () => assert.equal(iata(await client.get("KJFK")), "JFK"));
  await check(name, "MGET", async () => {
    const values = await client.mGet(["KJFK", "nowhere"]);
    assert.deepEqual([iata(values[0]), values[1]], ["JFK", null]);
  });
  await check(name, "SET is refused", () => assert.rejects(client.set("KJFK", "x"), /READONLY/));
  await client.close();
}

// Write an answer like `run.py`.
function answer(value) {
  if (value === null || value === undefined) return "nil";
  if (value instanceof Error) return `!${value.message.split(" ")[0]}`;
  if (typeof value === "string") return `'${Buffer.from(value).toString("base64")}`;
  if (Array.isArray(value)) return `[${value.map(answer).join(",")}]`;
  if (typeof value === "object") {
    const pairs = Object.entries(value).map(([name, text]) => `${answer(name)}:${answer(text)}`);
    return `{${pairs.sort().join(",")}}`;
  }
  return String(value);
}

// Perform the commands of a file of `run.py`. Each line is a command and its words in base64.
async function askTable(name, perform) {
  for (const [number, line] of readFileSync(path, "utf8").trimEnd().split("\n").entries()) {
    const [command, ...words] = line.split("\t");
    const keys = words.map((word) => Buffer.from(word, "base64"));
    const found = await perform(command, keys).catch((error) => error);
    console.log(`answer\t${name} ${version(name.replace("node-", ""))}\t${number}\t${answer(found)}`);
  }
}

async function askTableByIoredis(options) {
  const client = new Redis({ host, port: Number(port), ...options });
  const four = (queue, [key, field, missing]) => queue.get(key).hget(key, field).get(missing).strlen(key).exec();
  const results = (found) => found.map(([error, value]) => error ?? value);
  await askTable("ioredis", async (command, words) => {
    if (command === "MULTI") return results(await four(client.multi(), words));
    if (command === "PIPELINE") return results(await four(client.pipeline(), words));
    return client[command.toLowerCase()](...words, ...(command === "GETRANGE" ? [2, 5] : []));
  });
  await client.quit();
}

async function askTableByNodeRedis(options) {
  const client = createClient({ socket: { host, port: Number(port) }, ...options });
  await client.connect();
  const four = (queue, [key, field, missing]) => queue.get(key).hGet(key, field).get(missing).strLen(key);
  await askTable("node-redis", async (command, [key, ...words]) => {
    switch (command) {
      case "MULTI": return four(client.multi(), [key, ...words]).exec();
      case "PIPELINE": return four(client.multi(), [key, ...words]).execAsPipeline();
      case "MGET": return client.mGet([key, ...words]);
      case "EXISTS": return client.exists([key, ...words]);
      case "STRLEN": return client.strLen(key);
      case "GETRANGE": return client.getRange(key, 2, 5);
      case "HGET": return client.hGet(key, ...words);
      case "HMGET": return client.hmGet(key, words);
      case "HKEYS": return client.hKeys(key);
      case "HGETALL": return client.hGetAll(key);
      default: return client[command.toLowerCase()](key, ...words);
    }
  });
  await client.close();
}

if (path) {
  await askTableByIoredis({});
  await askTableByIoredis({ enableAutoPipelining: true });
  await askTableByNodeRedis({ RESP: 2 });
  await askTableByNodeRedis({ RESP: 3 });
} else {
  await askIoredis({});
  await askIoredis({ enableAutoPipelining: true });
  await askNodeRedis({ RESP: 2 });
  await askNodeRedis({ RESP: 3 });
}
