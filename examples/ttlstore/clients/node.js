// ioredis, and node-redis in both protocols, with keys that vanish on time: node node.js PORT
const assert = require("node:assert");
const Redis = require("ioredis");
const { createClient } = require("redis");

const port = Number(process.argv[2]);

async function ioredis() {
  const client = new Redis({ port, connectionName: "e2e" });
  await client.flushdb();
  assert.equal(await client.set("a", "1", "PX", 60_000), "OK");
  const replies = await client.pipeline().incr("a").pttl("a").get("none").lpush("a", 1).exec();
  assert.deepEqual([replies[0], replies[2]], [[null, 2], [null, null]]);
  assert.ok(replies[1][1] > 0 && /unknown command/.test(replies[3][0].message));
  assert.deepEqual(await client.multi().set("b", "x").get("b").exec(), [[null, "OK"], [null, "x"]]);
  await client.mset({ c: "1", d: "2" });
  assert.deepEqual(await client.mget("b", "c", "none"), ["x", "1", null]);
  const keys = [];
  for await (const found of client.scanStream({ match: "?", count: 2 })) keys.push(...found);
  assert.deepEqual(keys.sort(), ["a", "b", "c", "d"]);
  const listener = client.duplicate();
  const heard = new Promise((resolve) => listener.on("pmessage", (...words) => resolve(words)));
  await listener.psubscribe("__keyevent@0__:exp*");
  await client.psetex("soon", 100, "v");
  assert.deepEqual(await heard, ["__keyevent@0__:exp*", "__keyevent@0__:expired", "soon"]);
  await Promise.all([client.quit(), listener.quit()]);
}

async function nodeRedis(RESP) {
  const client = createClient({ url: `redis://127.0.0.1:${port}`, RESP, name: "e2e" });
  client.on("error", (error) => { throw error; });
  await client.connect();
  await client.flushDb();
  await client.set("a", "1", { PX: 60_000 });
  assert.equal(await client.incr("a"), 2);
  assert.deepEqual(await client.multi().set("b", "x").get("b").incr("a").exec(), ["OK", "x", 3]);
  await client.mSet({ c: "1", d: "2" });
  assert.deepEqual(await client.mGet(["c", "d", "none"]), ["1", "2", null]);
  const keys = [];
  for await (const found of client.scanIterator({ MATCH: "*" })) keys.push(...[found].flat());
  assert.deepEqual(keys.sort(), ["a", "b", "c", "d"]);
  await assert.rejects(client.lPush("a", "1"), /unknown command 'LPUSH'/);
  const listener = client.duplicate();
  await listener.connect();
  const heard = new Promise((resolve) => listener.pSubscribe("__keyevent@0__:*", resolve));
  await client.setEx("soon", 1, "v");
  assert.equal(await heard, "soon");
  assert.equal(await client.exists("soon"), 0);
  await Promise.all([client, listener].map((one) => one.close()));
}

(async () => {
  await ioredis();
  await nodeRedis(2);
  await nodeRedis(3);
  const version = (name) => `${name} ${require(`${name}/package.json`).version}`;
  console.log(version("ioredis"), version("redis"));
})();
