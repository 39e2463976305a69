package cli

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/npmrig"
)

// Other people's programs read and write the archives. The store is versitygw, which refuses wrong signatures.
func TestOtherProgramsReadAndWriteArchives(t *testing.T) {
	t.Parallel()
	if os.Getenv("GEM_TEST_LONG") == "" {
		t.Skip("it needs versitygw, rclone and awscli, which .ci/long installs: set GEM_TEST_LONG=1")
	}
	for _, program := range []string{"versitygw", "rclone", "/usr/bin/aws"} {
		if _, err := exec.LookPath(program); err != nil {
			npmrig.Missing(t, program+" is missing: see .ci/long")
		}
	}
	node, counts := npmrig.Node(t, "internal/testing/duckdb", "@duckdb/node-api",
		"npm ci --prefix internal/testing/duckdb")
	data, at := t.TempDir(), "127.0.0.1:"+freePort(t)
	keys := []string{"AWS_ACCESS_KEY_ID=the-key", "AWS_SECRET_ACCESS_KEY=the-secret", "AWS_REGION=test-1",
		"AWS_DEFAULT_REGION=test-1"}
	store := exec.CommandContext(t.Context(), "versitygw", "--access", "the-key", "--secret", "the-secret", "--region",
		"test-1",
		"--port", at, "posix", data)
	if err := store.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Process.Kill(); _ = store.Wait() }()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", at); err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("versitygw does not listen")
		}
	}
	run := func(program string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AWS_") }),
			keys...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
		return string(out)
	}
	aws := func(args ...string) string {
		return run("/usr/bin/aws", append([]string{"--endpoint-url", "http://" + at}, args...)...)
	}
	remote := ":s3,provider=Other,env_auth=true,region=test-1,endpoint='http://" + at + "':"
	aws("s3", "mb", "s3://calls")

	s, env := oldCalls(t, 5)
	env = append(append(env, keys...), "AWS_ENDPOINT_URL_S3=http://"+at)
	wrong := gemWith(t, append(env, "AWS_SECRET_ACCESS_KEY=another"), "prune", "--older-than", "1s", "--archive",
		"s3://calls/a")
	wrong.wantCode(t, exitFailed)
	wants(t, wrong.stderr, "403 Forbidden (SignatureDoesNotMatch)")
	gemWith(t, env, "prune", "--older-than", "1s", "--archive", "s3://calls/a", "--batch", "2").wantCode(t, exitDone)
	if s.calls() != 0 {
		t.Error("calls are left")
	}

	read := filepath.Join(t.TempDir(), "by-rclone")
	run("rclone", "copy", remote+"calls/a", read)
	if got := strings.TrimSpace(run(node, filepath.Join(counts, "count.mjs"), filepath.Join(read, "**",
		"*.jsonl.gz"))); got != "5 5" {
		t.Errorf("DuckDB counted %s", got)
	}
	sync := filepath.Join(t.TempDir(), "by-aws")
	aws("s3", "sync", "s3://calls/a", sync)
	aws("s3", "sync", sync, "s3://calls/by-aws")
	run("rclone", "copy", read, remote+"calls/by-rclone")
	for _, prefix := range []string{"a", "by-aws", "by-rclone"} {
		audited := gemWith(t, env, "audit", "--archive", "s3://calls/"+prefix)
		audited.wantCode(t, exitDone)
		wants(t, audited.stdout, "archive-line                5 lines           ok")
	}
}
