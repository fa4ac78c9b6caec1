// node-redis on a server whose keys vanish on time, in both protocols: node node_redis.js PORT
const assert = require("node:assert");
const { createClient } = require("redis");

async function run(RESP) {
  const client = createClient({ url: `redis://127.0.0.1:${process.argv[2]}`, RESP });
  client.on("error", (error) => { throw error; });
  await client.connect();
  await client.flushAll();
  await client.set("a", "1", { PX: 60_000 });
  assert.equal(await client.get("a"), "1");
  assert.equal(await client.incr("a"), 2);
  assert.equal(await client.append("a", "0"), 2);
  assert.equal(await client.type("a"), "string");
  // MULTI is how it writes several commands as one; each is seen, or none.
  assert.deepEqual(await client.multi().set("b", "x").get("b").incr("a").exec(), ["OK", "x", 21]);
  await assert.rejects(client.multi().set("b", "y").incr("b").execTyped(), /.*/);
  // The library gives watchers connections of their own.
  const watcher = client.duplicate();
  await watcher.connect();
  await watcher.watch("a");
  await client.set("a", "other");
  await assert.rejects(watcher.multi().set("a", "mine").exec(), /watch/i);
  await watcher.watch("a");
  await watcher.multi().set("a", "mine").exec();
  assert.equal(await client.get("a"), "mine");
  await client.mSet({ c: "1", d: "2" });
  assert.deepEqual(await client.mGet(["c", "d", "none"]), ["1", "2", null]);
  const keys = [];
  for await (const found of client.scanIterator({ MATCH: "*" })) keys.push(...[found].flat());
  assert.deepEqual(keys.sort(), ["a", "b", "c", "d"]);
  await client.rename("c", "e");
  assert.equal(await client.getDel("e"), "1");
  await assert.rejects(client.eval("return 1"), /no scripts/);
  const listener = client.duplicate();
  await listener.connect();
  const heard = new Promise((resolve) => listener.pSubscribe("__keyevent@0__:*", resolve));
  await client.setEx("soon", 1, "v");
  assert.equal(await heard, "soon");
  assert.equal(await client.exists("soon"), 0);
  await Promise.all([client, watcher, listener].map((one) => one.close()));
  return require("redis/package.json").version;
}

(async () => {
  await run(2);
  const version = await run(3);
  console.log(`| node-redis | ${version} | MULTI, WATCH, SCAN, patterns, in RESP2 and RESP3 |`);
})();
