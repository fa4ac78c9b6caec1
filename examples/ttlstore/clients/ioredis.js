// ioredis with keys that vanish on time: node ioredis.js PORT
const assert = require("node:assert");
const Redis = require("ioredis");

(async () => {
  const client = new Redis({ port: Number(process.argv[2]), connectionName: "e2e" });
  await client.flushdb();
  assert.equal(await client.set("a", "1", "PX", 60_000), "OK");
  const replies = await client.pipeline().incr("a").pttl("a").get("none").lpush("a", 1).exec();
  assert.deepEqual([replies[0], replies[2]], [[null, 2], [null, null]]);
  assert.ok(replies[1][1] > 59_000 && /unknown command/.test(replies[3][0].message));
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
  console.log("ioredis", require("ioredis/package.json").version);
})();
