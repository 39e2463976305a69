package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/archive"
	"github.com/gemworker/gem/internal/objectstore"
)

// pruning measures how many calls per second are pruned into a compressed file, and into a bucket. The store runs in
// the bench's process, and writes objects to the same folder and syncs them.
func pruning(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	folder, err := os.MkdirTemp(b.lab.folder, "gem-prune-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if storeObject(folder, r) != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer store.Close()
	bucket, err := objectstore.Open(objectstore.Location{Bucket: "calls"}, &objectstore.Config{AccessKeyID: "k",
		SecretAccessKey: "s", Region: "r", Endpoint: handlers.Secret(store.URL)})
	if err != nil {
		return nil, err
	}
	file, err := archive.Open(filepath.Join(folder, "calls.jsonl.gz"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for measure, to := range map[string]archive.Writer{"prune-file": file,
		"prune-objects": archive.NewObjects(bucket, time.Now())} {
		took, err := pruneInto(ctx, b, c, to)
		if err != nil {
			return nil, err
		}
		figures = append(figures, figure{measure: measure, unit: "calls/s", value: float64(b.sizes.pruned) / took.Seconds()})
	}
	return figures, nil
}

// storeObject writes the body of a request to a file with a name of its own.
func storeObject(folder string, r *http.Request) error {
	file, err := os.CreateTemp(folder, "object-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(file, r.Body)
	return errors.Join(err, file.Sync(), file.Close())
}

// pruneInto fills a new database with ended calls, prunes them into an archive, and returns how long that took.
func pruneInto(ctx context.Context, b *bench, c contestant, to archive.Writer) (took time.Duration, err error) {
	contender, ok := c.(claimer)
	if !ok {
		return 0, errors.New("its queue cannot be filled")
	}
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return 0, err
	}
	defer s.drop()
	db, err := s.filled(ctx, contender, filling{ended: b.sizes.pruned})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	done, err := archive.Prune(ctx, db, archive.PruneOptions{OlderThan: time.Hour, Batch: 5000, Archive: to})
	if err == nil && done.Removed != int64(b.sizes.pruned) {
		err = fmt.Errorf("%d of %d calls were removed", done.Removed, b.sizes.pruned)
	}
	return time.Since(began), err
}
