"""Between the contract and the core: conversion, batching, status codes."""
