// Package sdks tests the SDKs for handlers in other languages, with services that a real worker calls.
package sdks
