// Package cronoracle compares gem.cron_next with cron libraries of other people's making: croner, in many time zones,
// and croniter, in UTC. croner comes from npm: npm ci --prefix internal/testing/cronoracle. croniter is Debian's
// package python3-croniter, and only the long test needs it.
package cronoracle
