// Reads lines of JSON {cron, zone, from, to}, and prints for each a list of the instants from `from` to `to`.
import { createInterface } from 'node:readline'
import { Cron } from 'croner'

for await (const line of createInterface({ input: process.stdin })) {
  const { cron, zone, from, to } = JSON.parse(line)
  const job = new Cron(cron, { timezone: zone, paused: true })
  const found = []
  for (let at = job.nextRun(new Date(from)); at && at <= new Date(to); at = job.nextRun(at)) found.push(at.toISOString())
  console.log(JSON.stringify(found))
}
