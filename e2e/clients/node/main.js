// Asks a router by ioredis and by node-redis, which know nothing of it: `node main.js HOST PORT`. Prints what was seen;
// ends with 1 at the first thing that is not as it should be.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Redis } from "ioredis";
import { createClient } from "redis";

const [host, port] = process.argv.slice(2);

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

await askIoredis({});
await askIoredis({ enableAutoPipelining: true });
await askNodeRedis({ RESP: 2 });
await askNodeRedis({ RESP: 3 });
