// Verifies a request as a service does that uses Standard Webhooks' package: {"secret", "headers", "body"} comes in VERIFY. It prints the body that it took.
import { Webhook } from "standardwebhooks";

const { secret, headers, body } = JSON.parse(process.env.VERIFY);
console.log(JSON.stringify(new Webhook(secret).verify(body, headers)));
